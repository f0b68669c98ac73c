"""Warn when the log-probs of engines and learners differ, and when steps wait for graders. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from algorithms.learner.batch import TrainingSample
from algorithms.utils.errors import RunError
from algorithms.utils.files import replaced_whole

# Mean |log-prob(engine) - log-prob(learner)| that rounding explains: both in float32, or one of them in fewer bits.
# Random models of 8 and 12 layers: below 1e-6 in float32, 0.003 to 0.02 in bfloat16 (its maximum over a step's millions
# of tokens passes 1 without an error); the weights of a head that an engine did not get: 0.08 to 0.2 and more.
# An engine in int8: 0.21 on a model of 135M parameters, see docs/guides/small-gpus.md.
EXACT, ROUNDED, IN_INT8 = 1e-3, 5e-2, 0.4


class MismatchWatch:
    """Warns once when `policy/logp_mismatch_mean` is larger than rounding explains.

    Args:
        threshold: from which on to warn; None: what the types explain.
        dtypes: that engine and learner compute in.
    """

    def __init__(self, threshold: float | None, dtypes: tuple[str, str]) -> None:
        explained = IN_INT8 if "int8" in dtypes else EXACT if set(dtypes) == {"float32"} else ROUNDED
        self.threshold = explained if threshold is None else threshold
        self._told = False

    def observe(self, mismatch: float, lag: float) -> str | None:
        """Record a step's mean difference; return the warning when it is due.

        A policy that lags differs from the learners' on purpose, so such a step says nothing.
        """
        if self._told or lag or not mismatch > self.threshold:
            return None
        self._told = True
        return (
            f"policy/logp_mismatch_mean is {mismatch:.3g}, above {self.threshold:g}: engines sample with another "
            "policy than the learners train. Likely causes: env_runners.dtype differs from rl_module.dtype, "
            "weights that did not reach the engine (a tied head, a stale cache), or kernels that round differently "
            "(see env_runners.logp_mismatch_warning)"
        )


class GradingWatch:
    """Warns once of a step most of which went by waiting for environments and graders."""

    SHARE, LEAST_S = 0.5, 10.0

    def __init__(self) -> None:
        self._told = False

    def observe(self, record: Mapping[str, float | str]) -> str | None:
        """Look at a step's metrics; return the warning when it is due."""
        # Rollouts that run ahead keep nobody waiting.
        waited = min(float(record[tag]) for tag in ("time/grade", "time/collect_rollouts"))
        step = float(record["time/step"])
        if self._told or waited < max(self.LEAST_S, self.SHARE * step):
            return None
        self._told = True
        return (
            f"time/grade: environments, graders and the last runner kept a step waiting for {waited:.0f} of its "
            f"{step:.0f} s. What helps: env_runners.reward_actor for reward functions that wait for a server or hold a "
            "model, with more replicas or a larger concurrency if they are there already; more graders "
            "(R3ENV_GRADERS) for those that compute; training.max_off_policy_steps=1, which grades while learners work"
        )


FILE = "skipped_batch.npz"


class TooManySkippedSteps(RunError):
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

    def observe(self, skipped: bool, rows: Sequence[TrainingSample]) -> None:
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


def _kept(path: Path, rows: Sequence[TrainingSample]) -> str:
    """Write the rows; in words where they are, or why they are not: a full disk must not hide what went wrong."""
    try:
        with replaced_whole(path) as temporary, temporary.open("wb") as file:
            _write(file, rows)
    except OSError as error:
        return f"the last batch could not be written to {path} ({error})"
    return f"the last batch is in {path}"


def _write(file: IO[bytes], rows: Sequence[TrainingSample]) -> None:
    """Write rows as flat arrays: `lengths` tokens each; values of tokens as in `TrainingSample`."""
    empty = np.empty(0, np.float32)
    np.savez_compressed(
        file,
        lengths=np.array([len(row.tokens) for row in rows]),
        tokens=np.concatenate([row.tokens for row in rows]),
        loss_mask=np.concatenate([row.loss_mask for row in rows]),
        advantages=np.concatenate([np.broadcast_to(row.advantages, row.response_length) for row in rows]),
        weights=np.array([row.weight for row in rows]),
        old_logprobs=np.concatenate([empty, *(row.old_logprobs for row in rows if row.old_logprobs is not None)]),
    )
