"""Calls to the learner group: rows are dealt out by cost, and the results come back in the rows' order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import ray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.learner.batch import TrainingSample, shard
from algorithms.learner.flops import LearnerFacts, scoring_cost, update_cost
from algorithms.learner.update import UpdateStatistics
from algorithms.utils.errors import RunError

if TYPE_CHECKING:
    import torch

    from algorithms.learner.weights import Kind


_FACTS: WeakKeyDictionary[Any, LearnerFacts] = WeakKeyDictionary()

BUCKET_BYTES = 4 * 2**30
ASK_AGAIN_S = 10.0

# Ray's monitor of the machine's memory has an error of its own.
_DEATHS = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError)


def update_learners(learner_group: Any, rows: Sequence[TrainingSample], lr: float) -> UpdateStatistics:
    """One optimizer step of all learners together.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    facts = learner_facts(learner_group)
    shards = shard([update_cost(facts.model, row, beta=facts.beta) for row in rows], max(1, len(learner_group)))
    batches: Any = [[rows[i] for i in indices] for indices in shards]  # RLlib expects MultiAgentBatch
    with _own_errors(learner_group):
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
    learner_group: Any, rows: Sequence[TrainingSample], *, entropy: bool
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Log-probs (and entropies) of each row's response tokens under the current policy.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    if not rows:
        return []
    facts = learner_facts(learner_group).model
    shards = shard([scoring_cost(facts, row) for row in rows], max(1, len(learner_group)))
    parts = [[rows[i] for i in indices] for indices in shards]
    if learner_group.is_local:
        with _own_errors(learner_group):
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
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
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
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    (version, *_) = each_learner(learner_group, lambda learner: learner._weights_seq_no)
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
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    each_learner(learner_group, lambda learner: learner.open_buckets(kind, most_bytes))
    while True:
        parts = each_learner(learner_group, lambda learner: learner.next_bucket())
        if any(part is None for part in parts):
            return
        yield {name: tensor for part in parts for name, tensor in part.items()}


def put_tensors(learner_group: Any, kind: "Kind", tensors: dict[str, "torch.Tensor"]) -> None:
    """Give back tensors that `tensor_buckets` gave, to this group of learners or another.

    Raises:
        ValueError: a name or a shape that the model does not have.
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    reference = ray.put(tensors) if learner_group.is_remote else tensors

    def put(learner: Any) -> None:
        learner.put_bucket(kind, ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference)

    each_learner(learner_group, put)


def set_version(learner_group: Any, version: int) -> None:
    """Tell the learners which version their weights are."""

    def put(learner: Any) -> None:
        learner._weights_seq_no = version

    each_learner(learner_group, put)


def each_learner(learner_group: Any, function: Callable[[Any], Any]) -> list[Any]:
    """What a function of each learner gives; they run it together, as collectives need.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    answers = list(learner_group.foreach_learner(function))
    results = [answer.get() for answer in answers]
    _require_all(learner_group, results)
    return results


@contextmanager
def _own_errors(learner_group: Any) -> Iterator[None]:
    """Say of a call that raises what became of the learners.

    RLlib raises the first error that it sees: with a learner gone it may be another's, whose collective broke off.
    """
    import torch

    try:
        yield
    except (ray.exceptions.RayError, torch.OutOfMemoryError) as error:
        if learner_group.is_remote and not isinstance(error, _DEATHS):
            _require_all(learner_group, _roll_call(learner_group))
        named = _named(learner_group, [error])
        if named is error:
            raise
        raise named from error


def _roll_call(learner_group: Any) -> list[Any]:
    """None for each learner that is there, be it busy; the error of each that is gone."""
    answers = list(learner_group.foreach_learner(lambda learner: None, healthy_only=False, timeout_seconds=ASK_AGAIN_S))
    silent = len(learner_group) - len(answers)
    return [*(answer.get() for answer in answers), *[None] * silent]


def _require_all(learner_group: Any, results: Sequence[Any]) -> None:
    wanted, errors = max(1, len(learner_group)), [result for result in results if isinstance(result, Exception)]
    if errors or len(results) != wanted:
        raise _named(learner_group, errors, answered=len(results) - len(errors))


def _named(learner_group: Any, errors: Sequence[Exception], answered: int | None = None) -> Exception:
    """What to raise for learners' errors: a death where there is one, which the other errors may come of."""
    import torch

    wanted = max(1, len(learner_group))
    answered = wanted - len(errors) if answered is None else answered
    if answered + len(errors) < wanted or any(isinstance(error, _DEATHS) for error in errors):
        return LearnerDied(
            f"only {answered} of {wanted} learners answered: one died, or was killed for its memory; "
            "fix: go on from the last checkpoint with --resume"
        )
    for error in errors:
        cause = getattr(error, "cause", None) or error  # what Ray wraps
        if isinstance(cause, torch.OutOfMemoryError):
            said = next(iter(str(cause).splitlines()), "")
            return LearnerOutOfMemory(
                f"a learner ran out of memory ({said}); "
                "fix: go on from the last checkpoint with --resume and a smaller learners.token_budget"
            )
    return errors[0]


class LearnerDied(RunError):
    """A learner is gone; the run goes on from its last checkpoint."""


class LearnerOutOfMemory(LearnerDied):
    """A learner's device is too small for what it was given; with less at a time the run goes on."""
