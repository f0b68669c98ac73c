"""What the learner is fed: rows of tokens with everything the loss needs, and their padded batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class TrainingRow:
    """One response on its way into an update.

    Args:
        tokens: int32 [T], prompt and response.
        loss_mask: bool [T], True on the policy's own tokens. L of them.
        advantage: of the whole response.
        weight: what one of its tokens counts for, normalised over the whole optimizer step.
        behaviour_logprobs: float32 [L]; None takes the policy as it stands (ratio exactly 1).
        engine_logprobs: float32 [L] of an on-policy row; None for a replayed one, which takes no importance weight.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    advantage: float = 0.0
    weight: float = 0.0
    behaviour_logprobs: np.ndarray | None = None
    engine_logprobs: np.ndarray | None = None

    @property
    def on_policy(self) -> bool:
        """Whether the row was sampled in this step."""
        return self.engine_logprobs is not None

    @property
    def response_length(self) -> int:
        """Policy tokens of the row."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class PaddedBatch:
    """Rows side by side, padded on the right.

    Args:
        tokens: int64 [B, T].
        attention_mask: int64 [B, T].
        loss_mask: bool [B, T].
    """

    tokens: torch.Tensor
    attention_mask: torch.Tensor
    loss_mask: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[TrainingRow], device: torch.device) -> "PaddedBatch":
        """Pad rows to the longest of them."""
        width = max(len(row.tokens) for row in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        attention_mask = torch.zeros(len(rows), width, dtype=torch.long)
        loss_mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, row in enumerate(rows):
            length = len(row.tokens)
            tokens[index, :length] = torch.from_numpy(row.tokens.astype(np.int64))
            attention_mask[index, :length] = 1
            loss_mask[index, :length] = torch.tensor(row.loss_mask)  # a copy: what Ray delivers is read-only
        return cls(tokens.to(device), attention_mask.to(device), loss_mask.to(device))


def flat(values: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """Join one array a row into a float32 tensor [N] over the response tokens of all rows."""
    return torch.from_numpy(np.concatenate(values).astype(np.float32)).to(device)


def per_token(values: Sequence[float], rows: Sequence[TrainingRow], device: torch.device) -> torch.Tensor:
    """Repeat one number a row over the row's response tokens: float32 [N]."""
    lengths = [row.response_length for row in rows]
    return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), lengths)).to(device)
