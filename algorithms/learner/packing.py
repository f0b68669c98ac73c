"""How rows of unlike length are dealt out to learners and cut into micro-batches."""

import heapq
from collections.abc import Sequence


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
