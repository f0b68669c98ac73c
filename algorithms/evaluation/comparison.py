"""Compare two evaluations of the same problems: paired differences, each with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms.utils.statistics import FEWEST_PROBLEMS, Change, paired_bootstrap, stratified_bootstrap


@dataclass(frozen=True)
class Common:
    """How many problems of a benchmark two evaluations share, and how many each has."""

    problems: int
    of_first: int
    of_second: int

    @property
    def too_few(self) -> bool:
        """Return whether they are too few for a meaningful interval."""
        return self.problems < FEWEST_PROBLEMS


def count_common(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Common]:
    """Count the problems that both have, by benchmark.

    Args:
        first: what scores.json of one evaluation holds.
        second: of the other.
    """
    return {
        name: Common(len(one.keys() & other.keys()), len(one), len(other))
        for name, one, other in (
            (name, first[name]["by_problem"], second[name]["by_problem"]) for name in first if name in second
        )
    }


def changed_problems(
    first: Mapping[str, Any], second: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[str]:
    """List benchmarks with the same ids in both, and other problems under them.

    Args:
        first: what scores.json of one evaluation holds.
        second: of the other.
        one: digests of the first's benchmarks, see `fingerprint`.
        other: of the second's.
    """
    return [
        name
        for name in first
        if name in second
        and list(first[name]["by_problem"]) == list(second[name]["by_problem"])
        and name in one
        and name in other
        and one[name]["digest"] != other[name]["digest"]
    ]


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, Change]]:
    """Return how much higher the second is than the first, by benchmark and measure, over the common problems.

    Args:
        first: what scores.json of one evaluation holds.
        second: of the other.

    Returns:
        Only what both have, with at least ten problems in common; an interval over fewer says nothing.
    """
    changes: dict[str, dict[str, Change]] = {}
    for benchmark in (name for name in first if name in second):
        one, other = first[benchmark]["by_problem"], second[benchmark]["by_problem"]
        common = [uid for uid in one if uid in other]
        if not common:
            continue
        for measure in (name for name in one[common[0]] if name in other[common[0]]):
            change = paired_bootstrap(
                {uid: one[uid][measure] for uid in common}, {uid: other[uid][measure] for uid in common}
            )
            if change is not None:
                changes.setdefault(benchmark, {})[measure] = change
    return changes


def mean_changes(
    first: Mapping[str, Any], second: Mapping[str, Any], changes: Mapping[str, Mapping[str, Change]]
) -> dict[str, Change]:
    """Return the mean over benchmarks of their differences, by measure that all have; of one benchmark none.

    Args:
        first: what scores.json of one evaluation holds.
        second: of the other.
        changes: by benchmark, see `compare`.
    """
    if len(changes) < 2:
        return {}
    means: dict[str, Change] = {}
    pairs = [(first[name]["by_problem"], second[name]["by_problem"]) for name in changes]
    for measure in next(iter(changes.values())):
        if all(measure in measures for measures in changes.values()):
            change = stratified_bootstrap([_differences(one, other, measure) for one, other in pairs])
            if change is not None:
                means[measure] = change
    return means


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], measure: str) -> np.ndarray:
    return np.array([other[uid][measure] - one[uid][measure] for uid in one if uid in other])


def list_uncompared(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """List what only one of the two has and cannot be compared: benchmarks, and measures of a benchmark.

    Args:
        first: what scores.json of one evaluation holds.
        second: of the other.
    """
    found = [name for name in dict.fromkeys([*first, *second]) if (name in first) != (name in second)]
    for benchmark in (name for name in first if name in second):
        one, other = (side[benchmark]["scores"] for side in (first, second))
        measures = [name for name in dict.fromkeys([*one, *other]) if (name in one) != (name in other)]
        found += [f"{benchmark} {name.replace('_', ' ')}" for name in measures]
    return found
