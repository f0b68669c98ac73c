"""Trajectories as the page holds them: compact, every text and every token's piece once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.report.run_data import RunData
from algorithms.report.selection import Most, Selection, select
from algorithms.train.rollout_files import RolloutRow

# Log-probs and entropies are whole thousandths: shorter to write, and finer than a color.
_PARTS = 1000
_UNGRADED = ("timeout", "error", "environment_error")


def trajectories(runs: Sequence[RunData], most: Most) -> dict[str, Any]:
    """What the browser of trajectories shows.

    Args:
        runs: they share the room evenly; what one leaves goes to those after it.
        most: of all runs together.

    Returns:
        `rows`, `texts` (of turns) and `pieces` (of tokens) that these name by index, `left_out` (a sentence a run)
        and `scale`, the largest entropy and the largest -log-prob that colors tell apart.

    Raises:
        ReportError: a file of rollouts cannot be read.
    """
    texts, pieces = _Indices(), _Indices()
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    values = _Values()
    for index, run in enumerate(runs):
        share = most.shared_by(len(runs) - index)
        selection = select(sorted(run.directory.rollouts_folder.glob("step-*.parquet")), share)
        most = most.less(selection.rows)
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
    """`correct`, `truncated`, `error` (nobody could judge it) or `wrong`."""
    if row.verdict in _UNGRADED:
        return "error"
    if row.correct:
        return "correct"
    return "truncated" if row.truncated else "wrong"


class _Indices:
    """Numbers values by their first appearance."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def of(self, value: str) -> int:
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
        """The 99th percentiles: one strange token must not leave all others pale."""
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
        "verdict": row.verdict,
        "truncated": row.truncated,
        "reward": _rounded(row.reward),
        "outcome_reward": _rounded(row.outcome_reward),
        "ranking_reward": _rounded(row.ranking_reward),
        "advantage": _rounded(row.advantage),
        "tokens": row.tokens,
        "turns": [[turn["role"], texts.of(turn["content"])] for turn in turns],
        "response": texts.of(row.response),
    }
    if (data := row.token_data) is not None:
        packed["turn_lengths"] = list(row.turn_lengths)
        packed["pieces"] = [pieces.of(piece) for piece in data.pieces]
        packed["logprobs"] = _thousandths(data.logprobs)
        if data.entropies is not None:
            packed["entropies"] = _thousandths(data.entropies)
    return packed


def _thousandths(values: np.ndarray) -> list[int | None]:
    """Whole numbers; None for what is no number."""
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
