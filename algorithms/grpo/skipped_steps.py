"""Optimizer steps whose gradient is not finite are skipped; too many in a row end the run, with the batch kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from algorithms.learner.rows import TrainingRow
from algorithms.runs.whole_files import replaced_whole

FILE = "skipped_batch.npz"


class TooManySkippedSteps(RuntimeError):
    """The gradient was not finite several optimizer steps in a row: going on would only burn time."""


class SkippedSteps:
    """Counts them.

    Args:
        most: how many in a row are put up with; 0: any number.
        folder: where the batch is kept when there are more; None: nowhere.
    """

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self.most, self.folder = most, folder
        self.in_a_row = 0

    def observe(self, skipped: bool, rows: Sequence[TrainingRow]) -> None:
        """Take note of an optimizer step.

        Raises:
            TooManySkippedSteps: it was one too many; the message says where its rows are.
        """
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if self.most == 0 or self.in_a_row <= self.most:
            return
        kept = "" if self.folder is None else f"; {_kept(self.folder / FILE, rows)}"
        raise TooManySkippedSteps(
            f"the gradient was not finite {self.in_a_row} optimizer steps in a row (training.max_skipped_steps){kept}; "
            "fix: a lower training.lr from an earlier checkpoint, or rl_module.dtype=float32"
        )


def _kept(path: Path, rows: Sequence[TrainingRow]) -> str:
    """Write the rows; in words where they are, or why they are not: a full disk must not hide what went wrong."""
    try:
        with replaced_whole(path) as temporary, temporary.open("wb") as file:
            _write(file, rows)
    except OSError as error:
        return f"the last batch could not be written to {path} ({error})"
    return f"the last batch is in {path}"


def _write(file: IO[bytes], rows: Sequence[TrainingRow]) -> None:
    """Rows as flat arrays: `lengths` tokens each; log-probs and masks as in `TrainingRow`."""
    empty = np.empty(0, np.float32)
    np.savez_compressed(
        file,
        lengths=np.array([len(row.tokens) for row in rows]),
        tokens=np.concatenate([row.tokens for row in rows]),
        loss_mask=np.concatenate([row.loss_mask for row in rows]),
        advantages=np.array([row.advantage for row in rows]),
        weights=np.array([row.weight for row in rows]),
        behaviour_logprobs=np.concatenate(
            [empty, *(row.behaviour_logprobs for row in rows if row.behaviour_logprobs is not None)]
        ),
    )
