"""Keep rows with the same prompt together, in micro-batches and on learners, so that it is computed once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from algorithms.learner.packing import assign_rows

# Attention copies a prompt's keys and values for each response. They are no tokens of the budget, but take memory:
# the most keys of a micro-batch, as a multiple of its token budget.
KEYS_PER_TOKEN = 4
# Learners' loads have to get better by this share before a group is split over them.
WORTH_A_SPLIT = 0.05


@dataclass(frozen=True)
class Part:
    """One sequence of a row, split for sharing: its tokens up to the policy's first one, and the rest.

    Args:
        prompt: their bytes.
        prompt_length: their number.
        length: number of the other tokens.
    """

    prompt: bytes
    prompt_length: int
    length: int


Row = Sequence[Part]


def prompt_groups(rows: Sequence[Row]) -> list[list[int]]:
    """Return the rows of each prompt, as indices, by first appearance. Of several sequences the first one counts."""
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row[0].prompt, []).append(index)
    return list(groups.values())


class _Room:
    """What a micro-batch still takes."""

    def __init__(self, token_budget: int) -> None:
        self.tokens, self.keys = token_budget, token_budget * KEYS_PER_TOKEN
        self.prompts: set[bytes] = set()
        self.rows: list[int] = []

    def need(self, rows: Sequence[Row]) -> tuple[int, int]:
        """Return the tokens and keys of these rows, prompts that are here already not counted."""
        new = {part.prompt: part.prompt_length for row in rows for part in row if part.prompt not in self.prompts}
        own, prompts = sum(part.length for row in rows for part in row), sum(new.values())
        return own + prompts, own + prompts + sum(part.prompt_length for row in rows for part in row)

    def fits(self, rows: Sequence[Row]) -> bool:
        tokens, keys = self.need(rows)
        return tokens <= self.tokens and keys <= self.keys

    def add(self, indices: Sequence[int], rows: Sequence[Row]) -> None:
        tokens, keys = self.need(rows)
        self.tokens, self.keys = self.tokens - tokens, self.keys - keys
        self.prompts |= {part.prompt for row in rows for part in row}
        self.rows += indices


def shared_microbatches(rows: Sequence[Row], token_budget: int) -> list[list[int]]:
    """Split rows into micro-batches of a token budget that counts a prompt once: longest groups first, first fit.

    A group that fits nowhere as a whole fills a micro-batch of its own, and its other rows are placed in the same way:
    their prompt is computed again. Rows without an equal prompt are placed as by `packed_microbatches`.

    Args:
        rows: the sequences of each.
        token_budget: the most tokens of a micro-batch; a row above it gets a micro-batch of its own.

    Returns:
        Row indices by micro-batch.

    Raises:
        ValueError: the budget is below 1.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {token_budget}")
    groups = [sorted(group, key=lambda i: (-_tokens(rows[i]), i)) for group in prompt_groups(rows)]
    empty = _Room(token_budget)
    size = {group[0]: empty.need([rows[i] for i in group])[0] for group in groups}
    batches: list[_Room] = []
    for group in sorted(groups, key=lambda group: (-size[group[0]], min(group))):
        left = group
        while left:
            fits = next((batch for batch in batches if batch.fits([rows[i] for i in left])), None)
            taken = left
            if fits is None:
                fits = _Room(token_budget)
                batches.append(fits)
                taken = _first_that_fit(left, rows, fits)
            else:
                fits.add(left, [rows[i] for i in left])
            left = [i for i in left if i not in set(taken)]
    return [batch.rows for batch in batches]


def _tokens(row: Row) -> int:
    return sum(part.prompt_length + part.length for part in row)


def _first_that_fit(indices: Sequence[int], rows: Sequence[Row], room: _Room) -> list[int]:
    """Add rows to an empty micro-batch, in order, each that has room; at least one."""
    taken: list[int] = []
    for index in indices:
        if not taken or room.fits([rows[index]]):
            room.add([index], [rows[index]])
            taken.append(index)
    return taken


def assign_groups(groups: Sequence[Sequence[int]], cost: Callable[[Sequence[int]], float], n: int) -> list[list[int]]:
    """Assign rows to n learners with balanced costs; groups stay whole unless learners would idle.

    Args:
        groups: rows with one prompt.
        cost: of rows of one group on one learner, at least 0.
        n: number of learners.

    Returns:
        n lists of row indices, each ascending; empty where there are fewer rows than learners. Deterministic.

    Raises:
        ValueError: `n` is below 1, or a cost is negative.
    """
    costs = [cost(group) for group in groups]
    best, least = _assign(groups, costs, n)
    fair = sum(costs) / max(n, 1)
    for pieces in (1, 2, 4, 8):
        if n == 1 or least <= fair * (1 + WORTH_A_SPLIT):
            break
        parts = [
            part for group, whole in zip(groups, costs, strict=True) for part in _split(group, whole, fair / pieces)
        ]
        shares, load = _assign(parts, [cost(part) for part in parts], n)
        if load < least * (1 - WORTH_A_SPLIT):
            best, least = shares, load
    return best


def _split(group: Sequence[int], cost: float, limit: float) -> list[Sequence[int]]:
    """Split a group into so many parts that each costs about the limit; rows are never split."""
    count = min(len(group), max(1, math.ceil(cost / limit)))
    return [group[part::count] for part in range(count)]


def _assign(parts: Sequence[Sequence[int]], costs: Sequence[float], n: int) -> tuple[list[list[int]], float]:
    """Assign parts; return the rows of each learner, and the largest load."""
    shares = assign_rows(costs, n)
    load = max(sum(costs[part] for part in share) for share in shares)
    return [sorted(row for part in share for row in parts[part]) for share in shares], load
