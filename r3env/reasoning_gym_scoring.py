"""The scorers of reasoning-gym; imported only by the processes that can be killed."""

import pickle
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

# Imported at the top, unlike elsewhere: the seconds that it takes must not count as an answer's.
from reasoning_gym.factory import DATASETS

Scorer = Callable[[Mapping[str, Any], str], float]


@lru_cache(maxsize=64)
def scorer(name: str, config: bytes) -> Scorer:
    """The library's own scorer of a task: from what it generated and the answer to a score.

    Args:
        name: Of the task.
        config: The pickled configuration of its data set.
    """
    dataset_class, _ = DATASETS[name]
    return partial(_score, dataset_class(pickle.loads(config)))


def _score(dataset: Any, entry: Mapping[str, Any], answer: str) -> float:
    value = float(dataset.score_answer(answer, entry))
    return min(max(value, 0.0), 1.0) if value == value else 0.0
