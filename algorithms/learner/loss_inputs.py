"""The constants that a micro-batch's loss reads, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from algorithms.learner.batch import TrainingSample


@dataclass(frozen=True)
class LossInputs:
    """Constants of the loss, each [N] over the response tokens of all rows, in order.

    Args:
        old_logprobs: float32; NaN stands for the policy's own log-prob.
        sampling_logprobs: float32; NaN for replayed rows.
        advantages: float32.
        weights: float32, of a token in the loss.
        copies: float32, how many tokens of the step each stands for.
        reference_logprobs: float32, of the KL term's frozen policy; None without that term.
        lengths: response tokens of each row.
        anchors: float32, of |log-ratio|; None where no row has any.
        bonuses: float32, weight and coefficient of a token's entropy; None where no row has any.
        shaping: float32, γ of each token's shaped ratio, 0 where there is none; None where no row has one.
        dual_clip: float32, bound on tokens' ratios where the advantage is negative; 0: none; None where no row has one.
        direct: float32, 1 on tokens of rows with an objective of their own, advantage times log-prob; None: no row.
    """

    old_logprobs: torch.Tensor
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    copies: torch.Tensor
    reference_logprobs: torch.Tensor | None
    lengths: tuple[int, ...]
    anchors: torch.Tensor | None = None
    bonuses: torch.Tensor | None = None
    shaping: torch.Tensor | None = None
    dual_clip: torch.Tensor | None = None
    direct: torch.Tensor | None = None

    @classmethod
    def of(
        cls, rows: Sequence[TrainingSample], device: torch.device, reference_logprobs: torch.Tensor | None = None
    ) -> "LossInputs":
        """Concatenate the rows' values.

        Raises:
            ValueError: a row's values are neither [L] nor one number.
        """
        return cls(
            old_logprobs=flat([row.old_logprobs for row in rows], rows, device),
            sampling_logprobs=flat([row.sampling_logprobs for row in rows], rows, device),
            advantages=flat([row.advantages for row in rows], rows, device),
            weights=flat([row.weight for row in rows], rows, device),
            copies=flat([float(row.copies) for row in rows], rows, device),
            reference_logprobs=reference_logprobs,
            lengths=tuple(row.response_length for row in rows),
            anchors=_flat_if_any([row.anchors for row in rows], rows, device),
            bonuses=_flat_if_any([row.weight * row.entropy_bonus or None for row in rows], rows, device),
            shaping=_flat_if_any([row.shaping or None for row in rows], rows, device),
            dual_clip=_flat_if_any([row.dual_clip or None for row in rows], rows, device),
            direct=_flat_if_any([float(row.is_direct) or None for row in rows], rows, device),
        )

    def part(self, tokens: slice) -> "LossInputs":
        """Select tokens, for losses that treat each token by itself: row boundaries are lost."""
        old_logprobs = self.old_logprobs[tokens]
        return LossInputs(
            old_logprobs,
            self.sampling_logprobs[tokens],
            self.advantages[tokens],
            self.weights[tokens],
            self.copies[tokens],
            None if self.reference_logprobs is None else self.reference_logprobs[tokens],
            (len(old_logprobs),),
            None if self.anchors is None else self.anchors[tokens],
            None if self.bonuses is None else self.bonuses[tokens],
            None if self.shaping is None else self.shaping[tokens],
            None if self.dual_clip is None else self.dual_clip[tokens],
            None if self.direct is None else self.direct[tokens],
        )


def _flat_if_any(
    values: Sequence[np.ndarray | float | None], rows: Sequence[TrainingSample], device: torch.device
) -> torch.Tensor | None:
    """Concatenate as `flat`, with 0 for None; None where all are None."""
    if all(value is None for value in values):
        return None
    return flat([0.0 if value is None else value for value in values], rows, device)


def flat(
    values: Sequence[np.ndarray | float | None], rows: Sequence[TrainingSample], device: torch.device
) -> torch.Tensor:
    """Concatenate the rows' values into float32 [N]: [L] of a row, or one number for all its tokens; None gives NaN.

    Raises:
        ValueError: the values of a row have another shape.
    """
    parts = []
    for value, row in zip(values, rows, strict=True):
        part = np.asarray(np.nan if value is None else value, np.float32)
        if part.ndim and part.shape != (row.response_length,):
            raise ValueError(f"expected {row.response_length} values, one per policy token, got shape {part.shape}")
        parts.append(np.broadcast_to(part, row.response_length))
    return torch.from_numpy(np.concatenate(parts)).to(device)
