"""Whether TensorBoard shows what metrics.jsonl and evaluation.json hold: each number at its step, once."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
