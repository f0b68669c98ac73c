"""Sequences with a common beginning in one row of tokens: it is stored once, and all of them attend to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from algorithms.learner.packing import MIN_FILLED, rectangles

# Elements of a mask that rows of a rectangle may need because their contexts are of unlike length.
MASK_ELEMENTS = 2**20


@dataclass(frozen=True)
class Segment:
    """Tokens of a row that attend to a context elsewhere in the row, and causally to each other.

    Args:
        start: its first token.
        length: its tokens.
        context: the first token of its context.
        context_length: tokens of its context; 0: none.
    """

    start: int
    length: int
    context: int
    context_length: int


@dataclass(frozen=True)
class ContextRectangle:
    """Segments of similar length and context, stacked for attention: contexts end, and tokens begin, in one column.

    Args:
        segments: one to a row.
        width: slots for a row's tokens, padded on the right.
        context: slots for its context, as many as the longest has, padded on the left.
        query: the rectangle's first slot among those of queries.
        key: among those of keys.
    """

    segments: tuple[Segment, ...]
    width: int
    context: int
    query: int
    key: int

    @property
    def contexts(self) -> tuple[int, ...]:
        """The rows' context lengths, or one of them if all are alike."""
        lengths = tuple(segment.context_length for segment in self.segments)
        return lengths[:1] if len(set(lengths)) == 1 else lengths


@dataclass(frozen=True, eq=False)
class Copies:
    """Places that tokens are copied to, some tokens to several of them and some to none.

    Args:
        tokens: number of tokens, T.
        source: int64 [S], the token of each place, on the CPU.
        padding: bool [S], places whose gradient is known to be 0; None: none of them.
        device: of the tokens.
    """

    tokens: int
    source: torch.Tensor
    padding: torch.Tensor | None
    device: torch.device

    def copy(self, values: torch.Tensor) -> torch.Tensor:
        """Return [S, …] from [T, …]. Backward sums the copies of a token in float32, in the same order each time."""
        return _Copy.apply(values, self)

    @cached_property
    def index(self) -> torch.Tensor:
        """int64 [S], `source` on the device."""
        return self.source.to(self.device)

    @cached_property
    def backward_places(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Tokens by falling number of copies; and for each j the places of the j-th copies, of the first of them."""
        places = torch.arange(len(self.source)) if self.padding is None else torch.nonzero(~self.padding)[:, 0]
        by_token = places[torch.argsort(self.source[places], stable=True)]
        counts = torch.bincount(self.source[places], minlength=self.tokens)
        starts = counts.cumsum(0) - counts
        tokens = torch.argsort(counts, descending=True, stable=True)
        tokens = tokens[: int(torch.count_nonzero(counts))]
        found = []
        for copy in range(int(counts.max())):
            with_it = tokens[: int((counts > copy).sum())]
            found.append(by_token[starts[with_it] + copy].to(self.device))
        return tokens.to(self.device), found


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, copies: Copies) -> Any:
        ctx.copies = copies
        return values.index_select(0, copies.index)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient, (tokens, (first, *others)) = gradients[0], ctx.copies.backward_places
        total = gradient.index_select(0, first).to(torch.promote_types(gradient.dtype, torch.float32))
        for places in others:
            total[: len(places)] += gradient.index_select(0, places)
        result = gradient.new_zeros(ctx.copies.tokens, *gradient.shape[1:])
        return result.index_copy_(0, tokens, total.to(gradient.dtype)), None


@dataclass(frozen=True)
class SharedSequences:
    """Groups of sequences in one row of tokens: each group's prefix, then the rest of each of its sequences.

    Args:
        groups: of each group the tokens of its prefix, above 0, and of what follows it in each sequence. T together.
        device: of the index tensors.
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    device: torch.device

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in the order of their tokens; a prefix that one sequence alone continues joins its segment."""
        found, at = [], 0
        for prefix, continued in self.groups:
            lengths = [length for length in continued if length]
            start, at = at, at + prefix
            if len(lengths) < 2:
                at += sum(lengths)
                found.append(Segment(start, at - start, start, 0))
                continue
            found.append(Segment(start, prefix, start, 0))
            for length in lengths:
                found.append(Segment(at, length, start, prefix))
                at += length
        return tuple(found)

    @cached_property
    def tokens(self) -> int:
        """T."""
        return sum(segment.length for segment in self.segments)

    @cached_property
    def positions(self) -> torch.Tensor:
        """int64 [1, T], each token's position in its own sequence."""
        parts = [torch.arange(s.context_length, s.context_length + s.length) for s in self.segments]
        return torch.cat(parts)[None].to(self.device)

    # One call of a variable-length kernel: queries as they lie, keys copied after their contexts.

    @cached_property
    def query_offsets(self) -> torch.Tensor:
        """int32 [segments + 1], the start of each segment's queries, and T."""
        return self._offsets([s.length for s in self.segments])

    @cached_property
    def key_offsets(self) -> torch.Tensor:
        """int32 [segments + 1], the start of each segment's keys, context first; and their number."""
        return self._offsets([s.context_length + s.length for s in self.segments])

    @cached_property
    def longest_query(self) -> int:
        """Tokens of the longest segment."""
        return max(s.length for s in self.segments)

    @cached_property
    def longest_key(self) -> int:
        """Tokens of the longest segment with its context."""
        return max(s.context_length + s.length for s in self.segments)

    @cached_property
    def keys(self) -> Copies:
        """From tokens to keys, context first, segment after segment."""
        parts = [torch.cat([_context(s, s.context_length), _own(s, s.length)]) for s in self.segments]
        return Copies(self.tokens, torch.cat(parts), None, self.device)

    def _offsets(self, lengths: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self.device)

    # Rectangles: queries and keys in slots.

    @cached_property
    def rectangles(self) -> tuple[ContextRectangle, ...]:
        """The rectangles that hold all segments, long contexts first."""
        found, query, key = [], 0, 0
        for bucket in _buckets(self.segments):
            longest = max(s.context_length for s in bucket)
            for rows in rectangles([s.length for s in bucket], longest):
                context = max(bucket[row].context_length for row in rows)
                one = ContextRectangle(tuple(bucket[row] for row in rows), bucket[rows[0]].length, context, query, key)
                found.append(one)
                query += len(rows) * one.width
                key += len(rows) * (one.width + context)
        return tuple(found)

    @cached_property
    def token_of_slot(self) -> torch.Tensor:
        """int64, the token in each slot of queries; padding repeats its segment's last token."""
        return torch.cat([_own(s, r.width) for r in self.rectangles for s in r.segments]).to(self.device)

    @cached_property
    def slot_of_token(self) -> torch.Tensor:
        """int64 [T], the slot of each token among those of queries."""
        slots = torch.empty(self.tokens, dtype=torch.long)
        for rectangle in self.rectangles:
            first = rectangle.query
            for s in rectangle.segments:
                slots[s.start : s.start + s.length] = torch.arange(first, first + s.length)
                first += rectangle.width
        return slots.to(self.device)

    @cached_property
    def key_slots(self) -> Copies:
        """From tokens to slots of keys."""
        sources, padding = [], []
        for r in self.rectangles:
            columns = torch.arange(r.context + r.width)
            for s in r.segments:
                sources += [_context(s, r.context), _own(s, r.width)]
                padding.append((columns < r.context - s.context_length) | (columns >= r.context + s.length))
        return Copies(self.tokens, torch.cat(sources), torch.cat(padding), self.device)


def _own(segment: Segment, width: int) -> torch.Tensor:
    """int64 [width], a segment's tokens, the last one repeated."""
    return segment.start + torch.arange(width).clamp_max_(segment.length - 1)


def _context(segment: Segment, width: int) -> torch.Tensor:
    """int64 [width], a segment's context, the first token repeated on its left."""
    return segment.context + (torch.arange(width) - (width - segment.context_length)).clamp_min_(0)


def _buckets(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Sort segments by context: those of unlike length come together while the mask that they need is small."""
    found: list[list[Segment]] = []
    for length in sorted({s.context_length for s in segments}, reverse=True):
        own = [s for s in segments if s.context_length == length]
        if found and length >= MIN_FILLED * found[-1][0].context_length and length:
            together = [*found[-1], *own]
            width = max(s.length for s in together)
            if len(together) * width * (width + together[0].context_length) <= MASK_ELEMENTS:
                found[-1] = together
                continue
        found.append(own)
    return found
