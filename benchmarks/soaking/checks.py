"""Checks of a run directory after a soak."""

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from algorithms.history.store import FILE_NAME as HISTORY
from algorithms.train import metrics_file
from algorithms.train.manifest import damage
from benchmarks.soaking.kinds import Compared

# Of points that evaluation.json has too, only the step is compared: a resumed run may have evaluated a second time.
EVALUATED = "eval/"


def event_troubles(run: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List what is wrong with the event files, in words.

    Args:
        run: the run directory.
        rows: of metrics.jsonl.
    """
    points, expected = _points(run), _expected(run, rows)
    found: dict[str, list[str]] = defaultdict(list)
    for tag in sorted(points.keys() | expected.keys()):
        wanted, seen = expected.get(tag, {}), points.get(tag, [])
        if steps := odd_steps([step for step, _ in seen], sorted(wanted)):
            found[f"steps {steps} missing, doubled or out of order"].append(tag)
        elif unlike := [step for step, value in seen if not _alike(tag, value, wanted[step])]:
            found[f"other values than metrics.jsonl at steps {unlike}"].append(tag)
    return [f"TensorBoard has {said}, of {len(tags)} tags, {tags[0]} one of them" for said, tags in found.items()]


def odd_steps(seen: Sequence[int], expected: Sequence[int]) -> list[int]:
    """List the steps that are not there once each; all of them where only the order is wrong."""
    if list(seen) == list(expected):
        return []
    odd = [step for step in {*seen, *expected} if seen.count(step) != expected.count(step)]
    return sorted(odd) or list(seen)


def _points(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def _expected(run: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return step → value of each tag: every number of a row, and the evaluations before and after training."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    evaluation = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    for side in (evaluation["before"], evaluation["after"]):
        for name, value in side["metrics"].items():
            if value is not None:
                found[EVALUATED + name][side["step"]] = value
    for row in rows:
        for tag, value in row.items():
            if tag != "step" and isinstance(value, int | float):
                found[tag][row["step"]] = value
    return found


def _alike(tag: str, shown: float, value: float) -> bool:
    return tag.startswith(EVALUATED) or shown == float(np.float32(value))


# Numbers that the clock has a part in.
TIMED = ("time/", "throughput/", "run/wall_s")

# Standard deviation of held-out pass@1 over seeds, as R³'s on the easy task (docs/results/evidence.md).
SPREAD_OF_SEEDS = 0.037


def troubles(run: Path, steps: int, *, reference: Path, compared: Compared) -> list[str]:
    """List what is wrong with a finished run, in words.

    Args:
        run: its directory.
        steps: that it was to make.
        reference: directory of the undisturbed run with the same seed.
        compared: what of it must be the reference's.
    """
    found = []
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if odd := odd_steps([row["step"] for row in rows], range(1, steps + 1)):
        found.append(f"metrics.jsonl has steps {odd} missing, doubled or out of order")
    found += event_troubles(run, rows)
    if (files := len(list((run / "rollouts").glob("step-*.parquet")))) != steps:
        found.append(f"{files} rollout files for {steps} steps")
    if not (run / "summary.json").is_file():
        found.append("no summary.json")
    found += [f"{path.name}: {said}" for path in (run / "checkpoints").glob("step_*") if (said := damage(path))]
    found += _history_troubles(run / HISTORY, rows[-1])
    if compared == "accuracy" and (said := _accuracy_trouble(run, reference)):
        found.append(said)
    return found + (_differences(run, rows, reference) if compared == "numbers" else [])


def _differences(run: Path, rows: list[dict[str, Any]], reference: Path) -> list[str]:
    """Say which numbers are not the undisturbed run's."""
    found = []
    theirs = [json.loads(line) for line in (reference / "metrics.jsonl").read_text().splitlines()]
    if unlike := [a["step"] for a, b in zip(rows, theirs, strict=False) if _untimed(a) != _untimed(b)]:
        found.append(f"steps {unlike} differ from those of the undisturbed run")
    found += [f"{name} not the undisturbed run's" for name, read in _PARTS.items() if read(run) != read(reference)]
    return found


def accuracy(run: Path) -> float:
    """Read held-out pass@1 after training."""
    return float(json.loads((run / "summary.json").read_text())["eval"]["after"]["pass@1"])


def _accuracy_trouble(run: Path, reference: Path) -> str | None:
    """Report accuracies that differ by more than three standard errors: of the problems, and of two trainings.

    With runners the batches differ, so floats, then texts: the two part as runs of two seeds do.
    """
    shares = [_stored_evaluation(folder)["after"]["correct"] for folder in (run, reference)]
    ours, theirs = (share if isinstance(share, dict) else dict(enumerate(share)) for share in shares)
    gaps = np.array([ours[uid] - theirs[uid] for uid in theirs])
    allowed = 3 * np.sqrt(gaps.var() / len(gaps) + 2 * SPREAD_OF_SEEDS**2)
    return None if abs(gaps.mean()) <= allowed else f"pass@1 differs by {gaps.mean():+.3f}, noise is {allowed:.3f}"


def _history_troubles(file: Path, last: dict[str, Any]) -> list[str]:
    with sqlite3.connect(file) as database:
        (state,) = database.execute("PRAGMA integrity_check").fetchone()
        (stored,) = database.execute("SELECT COUNT(*) FROM pools").fetchone()
    found = [] if state == "ok" else [f"history: {state}"]
    if stored != last["replay/stored"]:
        found.append(f"history holds {stored} responses, the last step counted {last['replay/stored']:.0f}")
    return found


def _entries(run: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(run / HISTORY) as database:
        return database.execute(
            "SELECT uid, responses.correct, responses.context, step, text, packed FROM responses "
            "JOIN pools USING (event) JOIN queries ON queries.id = responses.query ORDER BY event"
        ).fetchall()


def _evaluation(run: Path) -> dict[str, Any]:
    return {key: value for key, value in _stored_evaluation(run).items() if key != "wall_s"}


def _conversations(run: Path) -> list[dict[str, Any]]:
    return metrics_file.read(run / "conversations.jsonl")


def _rollouts(run: Path) -> list[str]:
    """Read all rows; as text, in which NaN is NaN."""
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    return [repr(row) for file in files for row in pq.read_table(file).to_pylist()]


def _weights(run: Path) -> dict[str, str]:
    """Digest the tensors of the newest checkpoint, the optimizer's included."""
    newest = max((run / "checkpoints").glob("step_*"))
    files = sorted(newest.rglob("*.safetensors"))
    return {str(file.relative_to(newest)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# What an undisturbed run has to have alike, beside its metrics, and how it is read.
_PARTS: dict[str, Callable[[Path], Any]] = {
    "the history is": _entries,
    "evaluation.json is": _evaluation,
    "conversations.jsonl is": _conversations,
    "the rollouts are": _rollouts,
    "the weights of the last checkpoint are": _weights,
}


def _stored_evaluation(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "evaluation.json").read_text(encoding="utf-8")))


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(TIMED)}
