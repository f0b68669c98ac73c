"""Calls to the learner group: rows are dealt out by cost, and the results come back in the rows' order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import ray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.grpo.learner_errors import LearnerDied
from algorithms.learner.flops import scoring_cost, update_cost
from algorithms.learner.hardware import LearnerFacts
from algorithms.learner.packing import shard
from algorithms.learner.rows import TrainingRow
from algorithms.learner.update import UpdateStatistics

if TYPE_CHECKING:
    import torch

    from algorithms.learner.tensors import Kind

_FACTS: WeakKeyDictionary[Any, LearnerFacts] = WeakKeyDictionary()

BUCKET_BYTES = 4 * 2**30


def update_learners(learner_group: Any, rows: Sequence[TrainingRow], lr: float) -> UpdateStatistics:
    """One optimizer step of all learners together.

    Raises:
        LearnerDied: a learner did not answer.
    """
    facts = learner_facts(learner_group)
    shards = shard([update_cost(facts.model, row, beta=facts.beta) for row in rows], max(1, len(learner_group)))
    batches: Any = [[rows[i] for i in indices] for indices in shards]  # RLlib expects MultiAgentBatch
    results = learner_group.update(training_data=TrainingData(batches=batches), lr=lr)
    _require_all(learner_group, results)
    total = UpdateStatistics()
    for indices, result in zip(shards, results, strict=True):
        by_row: dict[str, Any] = {
            name: {indices[place]: values for place, values in getattr(result, name).items()}
            for name in UpdateStatistics.BY_ROW
        }
        total = total.merge(replace(result, **by_row))
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
    facts = learner_facts(learner_group).model
    shards = shard([scoring_cost(facts, row) for row in rows], max(1, len(learner_group)))
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


def learner_facts(learner_group: Any) -> LearnerFacts:
    """What the first learner says of its model and device; asked once.

    Raises:
        LearnerDied: no learner answered.
    """
    if learner_group not in _FACTS:
        if learner_group.is_local:
            _FACTS[learner_group] = learner_group._learner.facts
        else:
            answers = [answer.get() for answer in learner_group.foreach_learner(lambda learner: learner.facts)]
            _require_all(learner_group, answers)
            _FACTS[learner_group] = answers[0]
    return _FACTS[learner_group]


def policy_state(learner_group: Any) -> tuple[int, dict[str, Any]]:
    """The version of the learners' weights, and the whole weights, adapters merged, by module id.

    Raises:
        LearnerDied: a learner did not answer.
    """
    (version, *_) = _each(learner_group, lambda learner: learner._weights_seq_no)
    merged: dict[str, Any] = {}
    for bucket in tensor_buckets(learner_group, "weights"):
        merged |= bucket
    return int(version), {DEFAULT_MODULE_ID: merged}


def tensor_buckets(
    learner_group: Any, kind: "Kind", most_bytes: int = BUCKET_BYTES
) -> Iterator[dict[str, "torch.Tensor"]]:
    """Whole tensors of the learners, on the CPU, in buckets: no more than one has to fit into the driver's memory.

    Args:
        learner_group: RLlib's LearnerGroup.
        kind: see `GRPOLearner.open_buckets`.
        most_bytes: size of a bucket; a larger tensor has one of its own.

    Raises:
        LearnerDied: a learner did not answer.
    """
    _each(learner_group, lambda learner: learner.open_buckets(kind, most_bytes))
    while True:
        parts = _each(learner_group, lambda learner: learner.next_bucket())
        if any(part is None for part in parts):
            return
        yield {name: tensor for part in parts for name, tensor in part.items()}


def put_tensors(learner_group: Any, kind: "Kind", tensors: dict[str, "torch.Tensor"]) -> None:
    """Give back tensors that `tensor_buckets` gave, to this group of learners or another.

    Raises:
        ValueError: a name or a shape that the model does not have.
        LearnerDied: a learner did not answer.
    """
    reference = ray.put(tensors) if learner_group.is_remote else tensors

    def put(learner: Any) -> None:
        learner.put_bucket(kind, ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference)

    _each(learner_group, put)


def set_version(learner_group: Any, version: int) -> None:
    """Tell the learners which version their weights are."""

    def put(learner: Any) -> None:
        learner._weights_seq_no = version

    _each(learner_group, put)


def _each(learner_group: Any, function: Callable[[Any], Any]) -> list[Any]:
    """What a function of each learner gives; they run it together, as collectives need.

    Raises:
        LearnerDied: a learner did not answer.
    """
    answers = list(learner_group.foreach_learner(function))
    results = [answer.get() for answer in answers]
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, ray.exceptions.RayActorError):
            raise result
    _require_all(learner_group, results)
    return results


def _require_all(learner_group: Any, results: Sequence[Any]) -> None:
    wanted, answered = max(1, len(learner_group)), sum(not isinstance(result, Exception) for result in results)
    if answered != wanted:
        raise LearnerDied(
            f"only {answered} of {wanted} learners answered: one died, or was killed for its memory; "
            "fix: go on from the last checkpoint with --resume"
        )
