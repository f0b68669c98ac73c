"""Calls to the learner group: rows are dealt out by cost, and the results come back in the rows' order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from algorithms.learner.packing import shard
from algorithms.learner.rows import TrainingRow
from algorithms.learner.update import UpdateStatistics


class LearnerDied(RuntimeError):
    """A learner is gone; the run goes on from its last checkpoint."""


def update_learners(learner_group: Any, rows: Sequence[TrainingRow], lr: float) -> UpdateStatistics:
    """One optimizer step of all learners together.

    Raises:
        LearnerDied: a learner did not answer.
    """
    shards = _shards(learner_group, rows)
    batches: Any = [[rows[i] for i in indices] for indices in shards]  # RLlib expects MultiAgentBatch
    results = learner_group.update(training_data=TrainingData(batches=batches), lr=lr)
    _require_all(learner_group, results)
    total = UpdateStatistics()
    for result in results:
        total = total.merge(result)
    return total


def score_rows(
    learner_group: Any, rows: Sequence[TrainingRow], *, entropy: bool
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Log-probs (and entropies) of each row's response tokens under the current policy.

    Raises:
        LearnerDied: a learner did not answer.
    """
    if not rows:
        return []
    shards = _shards(learner_group, rows)
    parts = [[rows[i] for i in indices] for indices in shards]
    if learner_group.is_local:
        scored = [learner_group._learner.score(parts[0], entropy=entropy)]
    else:
        references = [ray.put(part) for part in parts]
        answers = learner_group.foreach_learner(
            lambda learner: learner.score(ray.get(references[learner._learner_index]), entropy=entropy)
        )
        scored = [answer.get() for answer in answers]
        _require_all(learner_group, scored)
    results: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    for indices, part in zip(shards, scored, strict=True):
        results.update(zip(indices, part, strict=True))
    return [results[i] for i in range(len(rows))]


def policy_state(learner_group: Any) -> tuple[int, dict[str, Any]]:
    """The version of the learners' weights, and the weights by module id."""
    component = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
    state = learner_group.get_state(components=component, inference_only=True)[COMPONENT_LEARNER]
    return int(state[WEIGHTS_SEQ_NO]), state[COMPONENT_RL_MODULE]


def _shards(learner_group: Any, rows: Sequence[TrainingRow]) -> list[list[int]]:
    return shard([len(row.tokens) for row in rows], max(1, len(learner_group)))


def _require_all(learner_group: Any, results: Sequence[Any]) -> None:
    if len(results) != max(1, len(learner_group)) or any(isinstance(result, Exception) for result in results):
        raise LearnerDied(
            f"{len(results)} of {max(1, len(learner_group))} learners answered: one died. "
            "Start again with --resume to go on from the last checkpoint."
        )
