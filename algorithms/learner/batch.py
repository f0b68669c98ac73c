"""What the learner is fed: rows of tokens with everything the loss needs, and the batches they become."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from algorithms.learner.sequences import PackedSequences


@dataclass(frozen=True)
class TrainingSample:
    """One response on its way into an update.

    Args:
        tokens: int32 [T], prompt and response.
        loss_mask: bool [T], True on the policy's own tokens. L of them.
        advantage: of the whole response.
        weight: what one of its tokens counts for, normalized over the whole optimizer step.
        old_logprobs: float32 [L]; None takes the policy as it stands (ratio exactly 1).
        sampling_logprobs: float32 [L] of an on-policy row; None for a replayed one, which takes no importance weight.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    advantage: float = 0.0
    weight: float = 0.0
    old_logprobs: np.ndarray | None = None
    sampling_logprobs: np.ndarray | None = None

    @property
    def on_policy(self) -> bool:
        """Whether the row was sampled in this step."""
        return self.sampling_logprobs is not None

    @property
    def response_length(self) -> int:
        """Policy tokens of the row."""
        return int(self.loss_mask.sum())

    @property
    def unmeasured(self) -> bool:
        """Whether this is a fresh row that no scoring pass has seen: the log still lacks its entropy."""
        return self.on_policy and self.old_logprobs is None

    def has_gradient(self, beta: float) -> bool:
        """Whether the loss pulls at it, with the KL term's coefficient `beta`."""
        return self.advantage != 0.0 or (beta > 0 and self.on_policy)


def dummy_row() -> TrainingSample:
    """A row whose loss and gradient are 0: what a learner computes while others of its group still have work."""
    return TrainingSample(tokens=np.zeros(2, np.int32), loss_mask=np.array([False, True]))


@dataclass(frozen=True)
class TokenBatch:
    """Rows as the model takes them, and where their response tokens are.

    Args:
        tokens: int64 [B, T].
        inputs: what else the model's decoder is called with.
        predicting: int64 [N], places in the flattened batch whose hidden states predict the response tokens.
        targets: int64 [N], the response tokens, rows in order, one after another.
        lengths: response tokens of each row; N together.
        real: tokens that are not padding.
    """

    tokens: torch.Tensor
    inputs: dict[str, Any]
    predicting: torch.Tensor
    targets: torch.Tensor
    lengths: tuple[int, ...]
    real: int


def packed_batch(rows: Sequence[TrainingSample], device: torch.device) -> TokenBatch:
    """Rows one after another in one row of tokens: no padding anywhere.

    Raises:
        ValueError: a row's first token is the policy's own, and nothing predicts it.
    """
    sequences = PackedSequences(tuple(len(row.tokens) for row in rows), device)
    inputs = {
        "position_ids": sequences.positions,
        "sequences": sequences,
        # Transformers hands a mask of four dimensions on as it is, where it would otherwise make one of [T, T].
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
    }
    starts = np.cumsum([0, *sequences.lengths[:-1]])
    tokens = torch.from_numpy(np.concatenate([row.tokens for row in rows]).astype(np.int64))
    return _token_batch(tokens[None], inputs, starts, rows, device)


def padded_batch(rows: Sequence[TrainingSample], device: torch.device) -> TokenBatch:
    """Rows side by side, padded on the right to the longest of them.

    Raises:
        ValueError: a row's first token is the policy's own, and nothing predicts it.
    """
    width = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    attention_mask = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        length = len(row.tokens)
        tokens[index, :length] = torch.from_numpy(row.tokens.astype(np.int64))
        attention_mask[index, :length] = 1
    return _token_batch(
        tokens, {"attention_mask": attention_mask.to(device)}, np.arange(len(rows)) * width, rows, device
    )


def _token_batch(
    tokens: torch.Tensor,
    inputs: dict[str, Any],
    starts: np.ndarray,
    rows: Sequence[TrainingSample],
    device: torch.device,
) -> TokenBatch:
    if any(row.loss_mask[0] for row in rows):
        raise ValueError("a row's first token cannot be the policy's own: nothing predicts it")
    own = [start + np.flatnonzero(row.loss_mask) for start, row in zip(starts, rows, strict=True)]
    places = torch.from_numpy(np.concatenate(own))
    return TokenBatch(
        tokens=tokens.to(device),
        inputs=inputs,
        predicting=(places - 1).to(device),
        targets=tokens.flatten()[places].to(device),
        lengths=tuple(len(part) for part in own),
        real=sum(len(row.tokens) for row in rows),
    )


def flat(values: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """Join one array a row into a float32 tensor [N] over the response tokens of all rows."""
    return torch.from_numpy(np.concatenate(values).astype(np.float32)).to(device)


def per_token(values: Sequence[float], rows: Sequence[TrainingSample], device: torch.device) -> torch.Tensor:
    """Repeat one number a row over the row's response tokens: float32 [N]."""
    lengths = [row.response_length for row in rows]
    return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), lengths)).to(device)


def packed_microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Cut rows into micro-batches of at most so many tokens: each row, longest first, goes where it first fits.

    Args:
        lengths: tokens of each row, prompt included.
        token_budget: the most tokens of a micro-batch; a row above it gets a micro-batch of its own.

    Returns:
        Row indices by micro-batch, longest rows first: a budget too large for the memory shows at once.

    Raises:
        ValueError: the budget is below 1, or a length is negative.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms", 1973 (first-fit decreasing).
    """
    lengths = _checked(lengths, token_budget)
    batches: list[list[int]] = []
    room: list[int] = []
    for row in _longest_first(lengths):
        fits = next((batch for batch, free in enumerate(room) if lengths[row] <= free), None)
        if fits is None:
            batches.append([row])
            room.append(token_budget - lengths[row])
        else:
            batches[fits].append(row)
            room[fits] -= lengths[row]
    return batches


def padded_microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Cut rows into micro-batches of similar length, so that rows × longest row stays within the budget.

    Args:
        lengths: tokens of each row, prompt included.
        token_budget: the most token slots of a micro-batch; a row above it gets a micro-batch of its own.

    Returns:
        Row indices by micro-batch, longest rows first: a budget too large for the memory shows at once.

    Raises:
        ValueError: the budget is below 1, or a length is negative.
    """
    lengths = _checked(lengths, token_budget)
    batches: list[list[int]] = []
    for row in _longest_first(lengths):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _checked(lengths: Sequence[int], token_budget: int) -> list[int]:
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget}")
    lengths = [int(length) for length in lengths]  # numpy's int32 could overflow in the sums
    if any(length < 0 for length in lengths):
        raise ValueError(f"lengths must not be negative, got {min(lengths)}")
    return lengths


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def shard(costs: Sequence[float], n: int) -> list[list[int]]:
    """Deal rows out to n learners with balanced costs: the most expensive row to the least loaded learner.

    Args:
        costs: what each row costs, say its tokens; not negative.
        n: number of learners.

    Returns:
        n lists of row indices, each ascending; empty where there are fewer rows than learners. Deterministic.

    Raises:
        ValueError: `n` is below 1, or a cost is negative.

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if any(cost < 0 for cost in costs):
        raise ValueError(f"costs must not be negative, got {min(costs)}")
    shards: list[list[int]] = [[] for _ in range(n)]
    # Rows break ties of load, so that rows without cost are spread as well.
    loads: list[tuple[float, int, int]] = [(0, 0, learner) for learner in range(n)]
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        load, rows, learner = heapq.heappop(loads)
        shards[learner].append(row)
        heapq.heappush(loads, (load + costs[row], rows + 1, learner))
    return [sorted(rows) for rows in shards]
