"""Two evaluations of the same problems: paired differences, each with its interval."""

from collections.abc import Mapping
from typing import Any

from algorithms.runs.bootstrap import Change, paired_bootstrap


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, Change]]:
    """By benchmark and measure, how much higher the second is than the first, over the problems that both have.

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


def left_out(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What cannot be compared, as only one of the two has it: benchmarks, and measures of a benchmark.

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
