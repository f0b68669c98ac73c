"""Select the trajectories that fit on the page, and pack them: every text and every token's piece once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from algorithms.evaluation.responses import UNGRADED
from algorithms.reporting.run_data import ReportError, RunData
from algorithms.train.rollout_files import RolloutRow, read_group_lengths, read_rollouts

# Log-probs and entropies are whole thousandths: shorter to write, and finer than a color.
_PARTS = 1000
# What a page says of a verdict beside the outcome, which has a badge of its own.
_VERDICTS = {
    "equal": "accepted",
    "different": "not accepted",
    "no_answer": "no answer was found",
    "timeout": "judging ran out of time",
    "error": "judging failed",
    "ungraded": "declined to judge",
    "environment_error": "the environment failed",
    "replayed": "",  # has a badge as well
}


@dataclass(frozen=True)
class Limit:
    """The most that a page may hold."""

    trajectories: int
    tokens: int

    def minus(self, rows: Sequence[RolloutRow]) -> "Limit":
        """Return the limit that remains after these rows."""
        return Limit(max(0, self.trajectories - len(rows)), max(0, self.tokens - sum(row.tokens for row in rows)))

    def shared_by(self, count: int) -> "Limit":
        """Return an equal share."""
        return Limit(self.trajectories // count, self.tokens // count)


@dataclass(frozen=True)
class Selection:
    """Whole groups, in the order of steps.

    Args:
        found: how many trajectories the run has.
        steps_found: over how many steps.
    """

    rows: Sequence[RolloutRow]
    found: int
    steps_found: int


def select(files: Sequence[Path], limit: Limit) -> Selection:
    """Choose groups evenly over the steps, the first and the newest step among them.

    Args:
        files: a step's rollouts each, in order.
        limit: kept to, but for groups that alone are larger: a step that is there at all has one group or more.

    Raises:
        ReportError: a file cannot be read.
    """
    filled: list[Path] = []
    rows: list[RolloutRow] = []
    try:
        for file in files:
            current = file
            if pq.read_metadata(file).num_rows:
                filled.append(file)
        found = sum(pq.read_metadata(file).num_rows for file in filled)
        places = evenly_spaced(len(filled), _steps(filled[-1], limit)) if filled and limit.trajectories > 0 else []
        for turn, place in enumerate(places):
            current = filled[place]
            # What one step leaves of its share goes to those after it.
            share = limit.minus(rows).shared_by(len(places) - turn)
            rows += read_rollouts(current, choose_groups(read_group_lengths(current), share, turn))
    except (OSError, pa.ArrowException) as error:
        raise ReportError(f"{current}: cannot be read ({error}); fix: move it away") from error
    return Selection(rows, found, len(filled))


def _steps(newest: Path, limit: Limit) -> int:
    """Count the steps that can have a group of the newest step's mean size."""
    groups = read_group_lengths(newest).values()
    trajectories = sum(len(group) for group in groups) / len(groups)
    tokens = sum(sum(group) for group in groups) / len(groups)
    return max(1, int(min(limit.trajectories / trajectories, limit.tokens / max(tokens, 1))))


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Choose at most `wanted` of the places 0 … count - 1, first and last among them; a single one is the last."""
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count - 1]
    return [round(place * (count - 1) / (wanted - 1)) for place in range(wanted)]


def choose_groups(lengths: Mapping[int, Sequence[int]], limit: Limit, turn: int = 0) -> list[int]:
    """Choose groups of a step, at least one, and no more than `limit` allows.

    Args:
        lengths: of each group's responses, in tokens.
        limit: of the groups together.
        turn: which group comes first, so that not every step shows the same ones.
    """
    numbers = list(lengths)
    first = turn % len(numbers)
    taken: list[int] = []
    trajectories = tokens = 0
    for number in [*numbers[first:], *numbers[:first]]:
        trajectories += len(lengths[number])
        tokens += sum(lengths[number])
        if taken and (trajectories > limit.trajectories or tokens > limit.tokens):
            break
        taken.append(number)
    return sorted(taken)


def trajectories(runs: Sequence[RunData], limit: Limit) -> dict[str, Any]:
    """Gather the data of the trajectory browser.

    Args:
        runs: they share the room evenly; what one leaves goes to those after it.
        limit: of all runs together.

    Returns:
        `rows`, `texts` (of turns) and `pieces` (of tokens) that these name by index, `left_out` (a sentence a run)
        and `scale`, the largest entropy and the largest -log-prob that colors distinguish.

    Raises:
        ReportError: a file of rollouts cannot be read.
    """
    texts, pieces = _Indices(), _Indices()
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    values = _Values()
    for index, run in enumerate(runs):
        share = limit.shared_by(len(runs) - index)
        selection = select(sorted(run.directory.rollouts_folder.glob("step-*.parquet")), share)
        limit = limit.minus(selection.rows)
        notes.append(_left_out(run.label, selection))
        for row in selection.rows:
            rows.append({"run": index} | _row(row, texts, pieces))
            values.add(row)
    return {
        "rows": rows,
        "texts": list(texts.items),
        "pieces": list(pieces.items),
        "left_out": [note for note in notes if note],
        "scale": values.scale(),
    }


def outcome(row: RolloutRow) -> str:
    """Name the outcome: `correct`, `truncated`, `error` (not graded) or `incorrect`."""
    if row.verdict in UNGRADED:
        return "error"
    if row.correct:
        return "correct"
    return "truncated" if row.truncated else "incorrect"


def verdict_text(verdict: str) -> str:
    """Return a verdict in words; one of an environment's own as it is."""
    return _VERDICTS.get(verdict, verdict.replace("_", " "))


class _Indices:
    """Numbers values by their first appearance."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def index(self, value: str) -> int:
        return self.items.setdefault(value, len(self.items))


class _Values:
    """Entropies and -log-probs of all tokens, for the colors' scale."""

    def __init__(self) -> None:
        self._entropies: list[np.ndarray] = []
        self._surprisals: list[np.ndarray] = []

    def add(self, row: RolloutRow) -> None:
        if (data := row.token_data) is not None:
            self._surprisals.append(-data.logprobs)
            if data.entropies is not None:
                self._entropies.append(data.entropies)

    def scale(self) -> dict[str, float]:
        """Return the 99th percentiles: one strange token must not leave all others pale."""
        return {"entropy": _largest(self._entropies), "surprisal": _largest(self._surprisals)}


def _largest(arrays: Sequence[np.ndarray]) -> float:
    values = np.concatenate([*arrays, np.zeros(0, np.float32)])
    values = values[np.isfinite(values)]
    return round(max(float(np.percentile(values, 99)), 0.1), 3) if len(values) else 1.0


def _row(row: RolloutRow, texts: _Indices, pieces: _Indices) -> dict[str, Any]:
    turns = row.turns or ([{"role": "prompt", "content": row.prompt}] if row.prompt else [])
    packed: dict[str, Any] = {
        "step": row.step,
        "group": row.group,
        "uid": row.uid,
        "context": row.context,
        "replayed": row.replayed,
        "outcome": outcome(row),
        "verdict": verdict_text(row.verdict),
        "truncated": row.truncated,
        "reward": _rounded(row.reward),
        "outcome_reward": _rounded(row.outcome_reward),
        "ranking_reward": _rounded(row.ranking_reward),
        "advantage": _rounded(row.advantage),
        "tokens": row.tokens,
        "turns": [[turn["role"], texts.index(turn["content"])] for turn in turns],
        "response": texts.index(row.response),
    }
    if (data := row.token_data) is not None:
        packed["turn_lengths"] = list(row.turn_lengths)
        packed["pieces"] = [pieces.index(piece) for piece in data.pieces]
        packed["logprobs"] = _thousandths(data.logprobs)
        if data.entropies is not None:
            packed["entropies"] = _thousandths(data.entropies)
        if data.advantages is not None:
            packed["advantages"] = _thousandths(data.advantages)
    if len(row.turn_rewards) > 1 or any(row.turn_feedback):
        packed["turn_rewards"] = [_rounded(reward) for reward in row.turn_rewards]
        packed["turn_feedback"] = [texts.index(text) if text else None for text in row.turn_feedback]
    if row.answer:
        packed["answer"] = texts.index(row.answer)
    if row.baseline is not None:
        packed["baseline"] = row.baseline
    return packed


def _thousandths(values: np.ndarray) -> list[int | None]:
    """Round to whole thousandths; None for what is no number."""
    rounded = np.rint(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) * _PARTS).astype(int).tolist()
    finite = np.isfinite(values)
    return rounded if finite.all() else [value if known else None for value, known in zip(rounded, finite, strict=True)]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")


def _left_out(label: str, selection: Selection) -> str:
    shown, steps = len(selection.rows), len({row.step for row in selection.rows})
    if not selection.found:
        return f"{label}: no rollouts were stored (run.save_rollouts)."
    if shown == selection.found:
        return ""
    return (
        f"{label}: {shown:,} of {selection.found:,} trajectories, of {steps:,} of {selection.steps_found:,} steps; "
        "python -m algorithms.report --trajectories N --tokens N shows more."
    )
