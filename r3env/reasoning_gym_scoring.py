"""The scorers of reasoning-gym; imported only by the processes that can be killed."""

import math
import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# Imported at the top, unlike elsewhere: the seconds that it takes must not count as an answer's.
from reasoning_gym.factory import DATASETS


def score(name: str, config: bytes, entry: Mapping[str, Any], answer: str) -> float:
    """The library's own score of an answer, between 0 and 1.

    Args:
        name: Of the task.
        config: The pickled configuration of its data set.
        entry: What the library generated: `question`, `answer`, `metadata`.
        answer: The answer to score.
    """
    value = float(_dataset(name, config).score_answer(answer, entry))
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


@lru_cache(maxsize=64)
def _dataset(name: str, config: bytes) -> Any:
    dataset_class, _ = DATASETS[name]
    return dataset_class(pickle.loads(config))
