"""DAPO's dynamic sampling: ask further queries until enough groups teach something, a bounded number of times."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from algorithms.grpo.groups import Group


@dataclass(frozen=True)
class Collection:
    """What a step has collected.

    Args:
        kept: the groups to train on, in the order in which they were asked.
        dropped: those that teach nothing, and what came in beyond the number wanted.
        refills: how often further queries were asked.
    """

    kept: list[Group]
    dropped: list[Group]
    refills: int


def refilled(
    groups: list[Group],
    refill: Callable[[int, int], list[Group]],
    informative: Callable[[Group], bool],
    *,
    wanted: int,
    max_refills: int,
) -> Collection:
    """Replace groups that teach nothing by those of further queries.

    A refill asks as many queries as the share of informative groups so far lets expect to be enough, and never more
    than `wanted`. After `max_refills` the step makes do with what it has, be it nothing.

    Args:
        groups: those of the step's own prompts.
        refill: given a number of queries and the number of the refill, from 1: asks the next queries of the epoch.
        informative: whether a group has anything to teach.
        wanted: informative groups to collect.
        max_refills: the most refills; 0 keeps all groups as they are.

    Source: DAPO, arXiv 2503.14476, section 3.2; the bound is ours.
    """
    if max_refills == 0:
        return Collection(groups, [], 0)
    asked, useful, refills = list(groups), [informative(group) for group in groups], 0
    while sum(useful) < wanted and refills < max_refills:
        refills += 1
        more = refill(_queries_needed(wanted, sum(useful), len(useful)), refills)
        asked += more
        useful += [informative(group) for group in more]
    kept = [group for group, teaches in zip(asked, useful, strict=True) if teaches][:wanted]
    chosen = {id(group) for group in kept}
    return Collection(kept, [group for group in asked if id(group) not in chosen], refills)


def _queries_needed(wanted: int, useful: int, asked: int) -> int:
    return min(wanted, math.ceil((wanted - useful) * asked / useful)) if useful else wanted
