"""Rows for the learner, and the tensors of a micro-batch: model inputs and loss inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from algorithms.learner.packing import PackedSequences
from algorithms.learner.prompt_groups import Part
from algorithms.learner.shared_sequences import Copies, SharedSequences
from algorithms.losses.base import Objective, load_term
from algorithms.losses.term import POLICY, Term


@dataclass(frozen=True)
class TrainingSample:
    """One response as a row of an update. Per-token values are [L], one for each policy token.

    Args:
        tokens: int32 [T], prompt and response. A negative one stands between sequences that do not see each other,
            such as turns that were sampled after contexts of their own, and is no token.
        loss_mask: bool [T], True on the policy's own tokens. L of them.
        advantages: float32 [L], or one number for all tokens of the response.
        weight: of one of its tokens in the loss, normalized over the whole optimizer step.
        old_logprobs: float32 [L], under the policy at the step's start; None: the current policy's (ratio exactly 1).
        sampling_logprobs: float32 [L] of an on-policy row, from the engine; None for a replayed one, which takes no
            importance weight.
        multiplicity: how many equal responses of the step the row stands for; 0: none, it is only to be scored.
        terms: the row's weight in each term of the loss that it takes part in, a number or float32 [L].
        inputs: what terms read beside these, by name: a number or float32 [L].
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    advantages: np.ndarray | float = 0.0
    weight: float = 0.0
    old_logprobs: np.ndarray | None = None
    sampling_logprobs: np.ndarray | None = None
    multiplicity: int = 1
    terms: Mapping[Term, np.ndarray | float] = field(default_factory=lambda: {POLICY: 1.0})
    inputs: Mapping[str, np.ndarray | float] = field(default_factory=dict)

    @property
    def on_policy(self) -> bool:
        """Whether the row was sampled in this step."""
        return self.sampling_logprobs is not None

    @property
    def response_length(self) -> int:
        """Policy tokens of the row, L."""
        return int(self.loss_mask.sum())

    @property
    def sequences(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens and mask of each sequence of the row, in order; most rows have one."""
        places = np.flatnonzero(self.tokens < 0)
        starts, ends = [0, *(places + 1).tolist()], [*places.tolist(), len(self.tokens)]
        return [(self.tokens[a:b], self.loss_mask[a:b]) for a, b in zip(starts, ends, strict=True)]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part of each sequence of the row that it may share with others."""
        parts = []
        for tokens, mask in self.sequences:
            prompt = int(np.argmax(mask)) if mask.any() else len(mask)
            parts.append(Part(tokens[:prompt].tobytes(), prompt, len(tokens) - prompt))
        return tuple(parts)

    @property
    def unscored(self) -> bool:
        """Whether this is an on-policy row without log-probs from a scoring pass: the update computes them."""
        return self.on_policy and self.old_logprobs is None

    @property
    def has_gradient(self) -> bool:
        """Whether the loss has a gradient on this row."""
        return bool(np.any(self.advantages)) or any(
            np.any(weight) and not issubclass(load_term(each.name), Objective) for each, weight in self.terms.items()
        )


def dummy_row() -> TrainingSample:
    """Return a row whose loss and gradient are 0: learners without rows compute it while others have work."""
    return TrainingSample(tokens=np.zeros(2, np.int32), loss_mask=np.array([False, True]))


@dataclass(frozen=True)
class TokenBatch:
    """Rows as the model takes them, and the places of their response tokens.

    Args:
        tokens: int64 [B, T].
        inputs: further arguments of the model's decoder.
        predicting: int64 [N], positions in the flattened batch whose hidden states predict the response tokens.
        targets: int64 [N], the response tokens, rows in order, one after another.
        lengths: response tokens of each row; N together.
        real: number of tokens that are not padding.
        copies: the same positions, where some predict several tokens; None where none does.
    """

    tokens: torch.Tensor
    inputs: dict[str, Any]
    predicting: torch.Tensor
    targets: torch.Tensor
    lengths: tuple[int, ...]
    real: int
    copies: Copies | None = None


def packed_batch(rows: Sequence[TrainingSample], device: torch.device) -> TokenBatch:
    """Concatenate rows into one row of tokens, without padding.

    Raises:
        ValueError: a row's first token is the policy's own, and nothing predicts it.
    """
    parts = [part for row in rows for part in row.sequences]
    sequences = PackedSequences(tuple(len(tokens) for tokens, _ in parts), device)
    starts = np.cumsum([0, *sequences.lengths[:-1]])
    tokens = torch.from_numpy(np.concatenate([tokens for tokens, _ in parts]).astype(np.int64))
    return _token_batch(tokens[None], _packed_inputs(sequences), starts, rows, device)


def _packed_inputs(sequences: PackedSequences | SharedSequences) -> dict[str, Any]:
    return {
        "position_ids": sequences.positions,
        "sequences": sequences,
        # Transformers passes a mask of four dimensions through; otherwise it would make one of [T, T].
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=sequences.device),
    }


def shared_batch(rows: Sequence[TrainingSample], device: torch.device) -> TokenBatch:
    """Concatenate rows into one row of tokens that has each prompt once; without equal prompts as `packed_batch` does.

    Raises:
        ValueError: a row's first token is the policy's own, and nothing predicts it.
    """
    parts = [
        (tokens, mask, part) for row in rows for (tokens, mask), part in zip(row.sequences, row.parts, strict=True)
    ]
    groups: dict[bytes, list[int]] = {}
    for index, (_, _, part) in enumerate(parts):
        groups.setdefault(part.prompt, []).append(index)
    if len(groups) == len(parts) or not all(part.prompt_length for _, _, part in parts):
        return packed_batch(rows, device)
    pieces, layout, at = [], [], 0
    predicting: list[Any] = [None] * len(parts)
    for members in groups.values():
        tokens, _, first = parts[members[0]]
        prompt = first.prompt_length
        pieces.append(tokens[:prompt])
        last = at + prompt - 1
        at += prompt
        for index in members:
            tokens, mask, part = parts[index]
            own = np.flatnonzero(mask) - prompt
            # The prompt's last token predicts the first one of every response.
            predicting[index] = np.where(own == 0, last, at + own - 1)
            pieces.append(tokens[prompt:])
            at += part.length
        layout.append((prompt, tuple(parts[index][2].length for index in members)))
    sequences = SharedSequences(tuple(layout), device)
    places = torch.from_numpy(np.concatenate(predicting).astype(np.int64))
    targets = np.concatenate([tokens[mask] for tokens, mask, _ in parts]).astype(np.int64)
    return TokenBatch(
        tokens=torch.from_numpy(np.concatenate(pieces).astype(np.int64))[None].to(device),
        inputs=_packed_inputs(sequences),
        predicting=places.to(device),
        targets=torch.from_numpy(targets).to(device),
        lengths=tuple(row.response_length for row in rows),
        real=at,
        copies=Copies(at, places, None, device),
    )


def padded_batch(rows: Sequence[TrainingSample], device: torch.device) -> TokenBatch:
    """Stack the rows' sequences, padded on the right to the longest of them.

    Raises:
        ValueError: a row's first token is the policy's own, and nothing predicts it.
    """
    parts = [tokens for row in rows for tokens, _ in row.sequences]
    width = max(len(part) for part in parts)
    tokens = torch.zeros(len(parts), width, dtype=torch.long)
    attention_mask = torch.zeros(len(parts), width, dtype=torch.long)
    for index, part in enumerate(parts):
        tokens[index, : len(part)] = torch.from_numpy(part.astype(np.int64))
        attention_mask[index, : len(part)] = 1
    return _token_batch(
        tokens, {"attention_mask": attention_mask.to(device)}, np.arange(len(parts)) * width, rows, device
    )


def _token_batch(
    tokens: torch.Tensor,
    inputs: dict[str, Any],
    starts: np.ndarray,
    rows: Sequence[TrainingSample],
    device: torch.device,
) -> TokenBatch:
    masks = [mask for row in rows for _, mask in row.sequences]
    if any(mask[0] for mask in masks):
        raise ValueError("a row's first token cannot be the policy's own: nothing predicts it")
    own = [start + np.flatnonzero(mask) for start, mask in zip(starts, masks, strict=True)]
    places = torch.from_numpy(np.concatenate(own))
    return TokenBatch(
        tokens=tokens.to(device),
        inputs=inputs,
        predicting=(places - 1).to(device),
        targets=tokens.flatten()[places].to(device),
        lengths=tuple(row.response_length for row in rows),
        real=sum(len(mask) for mask in masks),
    )
