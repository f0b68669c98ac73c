"""Where packed sequences begin and end, and how their tokens move into rectangles for backends that need them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

# A sequence joins a rectangle when it fills at least this share of a row; shorter ones start the next rectangle.
LEAST_FILLED = 0.7
# Below this many slots a rectangle takes shorter sequences too: a call of its own would cost more than their padding.
SLOTS_WORTH_A_CALL = 1024


@dataclass(frozen=True)
class Rectangle:
    """Sequences of similar length side by side: `rows` of them, each `width` slots, padded on the right."""

    rows: int
    width: int


@dataclass(frozen=True)
class PackedSequences:
    """Several sequences in one row of tokens, one after another.

    Args:
        lengths: tokens of each sequence, each above 0. T together.
        device: where index tensors go.
    """

    lengths: tuple[int, ...]
    device: torch.device

    @cached_property
    def offsets(self) -> torch.Tensor:
        """int32 [sequences + 1], where each sequence starts, and T."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.device)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [1, T], each token's place in its own sequence."""
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
        """Whether tokens are where their slots are: nothing has to move."""
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


def rectangles(lengths: Sequence[int]) -> list[list[int]]:
    """Sort sequences into rectangles of similar length, longest first; ties keep their order.

    Args:
        lengths: tokens of each sequence.

    Returns:
        Indices of the sequences by rectangle.
    """
    longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    chosen: list[list[int]] = []
    for row in longest_first:
        if chosen and _joins(lengths[row], len(chosen[-1]), lengths[chosen[-1][0]]):
            chosen[-1].append(row)
        else:
            chosen.append([row])
    return chosen


def _joins(length: int, rows: int, width: int) -> bool:
    return length >= LEAST_FILLED * width or rows * width < SLOTS_WORTH_A_CALL
