"""The scores of a finished evaluation, checked before they are believed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.utils.files import read_file


def read_scores(file: Path) -> dict[str, Any]:
    """Return what scores.json holds, by benchmark.

    Raises:
        OSError, ValueError: it cannot be read, or holds something else.
    """
    try:
        stored = json.loads(read_file(file))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(stored, dict):
        raise ValueError("not a JSON object of benchmarks")
    for name, one in stored.items():
        if not _is_benchmark(one):
            raise ValueError(f"{name} holds no scores of a benchmark")
    return stored


def _is_benchmark(one: object) -> bool:
    if not isinstance(one, Mapping):
        return False
    measures = [one.get("scores"), one.get("levels")]
    problems = one.get("by_problem")
    return (
        all(_is_count(one.get(name), least) for name, least in (("problems", 1), ("samples", 1)))
        and _is_count(one.get("ungraded", 0), 0)
        and all(isinstance(each, Mapping) and all(map(_is_score, each.values())) for each in measures)
        and isinstance(problems, Mapping)
        and all(isinstance(each, Mapping) and all(map(_is_number, each.values())) for each in problems.values())
        and len({frozenset(each) for each in problems.values()}) <= 1  # all have the same measures
    )


def _is_score(one: object) -> bool:
    if not isinstance(one, Mapping) or not _is_number(one.get("mean")):
        return False
    ends = (one.get("low"), one.get("high"))
    return ends == (None, None) or all(map(_is_number, ends))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
