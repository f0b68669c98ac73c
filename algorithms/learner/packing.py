"""Place rows by length: in micro-batches, on learners, in one packed row of tokens, and in rectangles."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

# A sequence joins a rectangle if it fills at least this share of a row; shorter ones start the next rectangle.
MIN_FILLED = 0.7
# Below this many slots a rectangle takes shorter sequences too: another call would cost more than their padding.
SLOTS_WORTH_A_CALL = 1024


def packed_microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Split rows into micro-batches of a token budget: longest first, each into the first one with room.

    Args:
        lengths: tokens of each row, prompt included.
        token_budget: the most tokens of a micro-batch; a row above it gets a micro-batch of its own.

    Returns:
        Row indices by micro-batch, longest rows first: a budget too large for the memory shows at once.

    Raises:
        ValueError: the budget is below 1, or a length is negative.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms", 1973 (first-fit decreasing).
    """
    lengths = _validate(lengths, token_budget)
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


def padded_microbatches(
    lengths: Sequence[int], token_budget: int, counts: Sequence[int] | None = None
) -> list[list[int]]:
    """Split rows into micro-batches of similar length: sequences × longest sequence stays within the budget.

    Args:
        lengths: tokens of each row's longest sequence, prompt included.
        token_budget: the most token slots of a micro-batch; a row above it gets a micro-batch of its own.
        counts: sequences of each row; None: one each.

    Returns:
        Row indices by micro-batch, longest rows first: a budget too large for the memory shows at once.

    Raises:
        ValueError: the budget is below 1, or a length is negative.
    """
    lengths = _validate(lengths, token_budget)
    counts = [1] * len(lengths) if counts is None else counts
    batches: list[list[int]] = []
    stacked = 0  # sequences of the last one
    for row in _longest_first(lengths):
        stacked += counts[row]
        if batches and stacked * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
            stacked = counts[row]
    return batches


def _validate(lengths: Sequence[int], token_budget: int) -> list[int]:
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget}")
    lengths = [int(length) for length in lengths]  # numpy's int32 could overflow in the sums
    if any(length < 0 for length in lengths):
        raise ValueError(f"lengths must not be negative, got {min(lengths)}")
    return lengths


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def assign_rows(costs: Sequence[float], n: int) -> list[list[int]]:
    """Assign rows to n learners with balanced costs: the most expensive row to the least loaded learner.

    Args:
        costs: of each row, such as its tokens; not negative.
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
    # The number of rows breaks ties of load: rows without cost are spread as well.
    loads: list[tuple[float, int, int]] = [(0, 0, learner) for learner in range(n)]
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        load, rows, learner = heapq.heappop(loads)
        shards[learner].append(row)
        heapq.heappush(loads, (load + costs[row], rows + 1, learner))
    return [sorted(rows) for rows in shards]


@dataclass(frozen=True)
class Rectangle:
    """Stacked sequences of similar length: `rows` of them, each `width` slots, padded on the right."""

    rows: int
    width: int


@dataclass(frozen=True)
class PackedSequences:
    """Several sequences in one row of tokens, one after another.

    Args:
        lengths: tokens of each sequence, each above 0. T together.
        device: of the index tensors.
    """

    lengths: tuple[int, ...]
    device: torch.device

    @cached_property
    def offsets(self) -> torch.Tensor:
        """int32 [sequences + 1], the start of each sequence, and T."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.device)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [1, T], each token's position in its own sequence."""
        return torch.cat([torch.arange(length) for length in self.lengths])[None].to(self.device)

    @cached_property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """The rectangles that hold all sequences, longest first. S slots together."""
        return tuple(Rectangle(len(rows), self.lengths[rows[0]]) for rows in self._rectangle_rows)

    @cached_property
    def token_of_slot(self) -> torch.Tensor:
        """int64 [S], the token in each slot; padding repeats its sequence's last token."""
        parts = []
        for rows, rectangle in zip(self._rectangle_rows, self.rectangles, strict=True):
            starts = torch.tensor([self._starts[row] for row in rows])
            last = torch.tensor([self.lengths[row] - 1 for row in rows])
            inside = torch.minimum(torch.arange(rectangle.width)[None], last[:, None])
            parts.append((starts[:, None] + inside).flatten())
        return torch.cat(parts).to(self.device)

    @cached_property
    def slot_of_token(self) -> torch.Tensor:
        """int64 [T], the slot of each token."""
        slots = torch.empty(sum(self.lengths), dtype=torch.long)
        first = 0
        for rows, rectangle in zip(self._rectangle_rows, self.rectangles, strict=True):
            for row in rows:
                start, length = self._starts[row], self.lengths[row]
                slots[start : start + length] = torch.arange(first, first + length)
                first += rectangle.width
        return slots.to(self.device)

    @cached_property
    def in_place(self) -> bool:
        """Whether each token is already in its slot, so that nothing has to move."""
        return len(self.token_of_slot) == len(self.slot_of_token) and self._order == sorted(self._order)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for length in self.lengths[:-1]:
            starts.append(starts[-1] + length)
        return starts

    @cached_property
    def _order(self) -> list[int]:
        return [row for rows in self._rectangle_rows for row in rows]

    @cached_property
    def _rectangle_rows(self) -> list[list[int]]:
        return rectangles(self.lengths)


def rectangles(lengths: Sequence[int], context: int = 0) -> list[list[int]]:
    """Sort sequences into rectangles of similar length, longest first; ties keep their order.

    Args:
        lengths: tokens of each sequence.
        context: further tokens that each row attends to.

    Returns:
        Indices of the sequences, by rectangle.
    """
    longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    chosen: list[list[int]] = []
    for row in longest_first:
        if chosen and _joins(lengths[row], len(chosen[-1]), lengths[chosen[-1][0]], context):
            chosen[-1].append(row)
        else:
            chosen.append([row])
    return chosen


def _joins(length: int, rows: int, width: int, context: int) -> bool:
    return length >= MIN_FILLED * width or rows * (width + context) < SLOTS_WORTH_A_CALL
