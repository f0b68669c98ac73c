"""Calls to the learner group: rows are assigned by cost, and results come back in the rows' order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import ray
import torch
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.learner.batch import TrainingSample
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.learner.flops import LearnerFacts, scoring_costs, update_costs
from algorithms.learner.forward import ScoringModel
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.prompt_groups import assign_groups, prompt_groups
from algorithms.learner.update import UpdateStatistics
from algorithms.learner.weights import Kind
from algorithms.utils.errors import RunError

T = TypeVar("T")

_FACTS: WeakKeyDictionary[LearnerGroup, LearnerFacts] = WeakKeyDictionary()

BUCKET_BYTES = 4 * 2**30
PING_TIMEOUT_S = 10.0

# Ray's memory monitor raises an error of its own.
_DIED = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError)


def update_learners(
    learner_group: LearnerGroup, rows: Sequence[TrainingSample], lr: float, *, entropies: bool = False
) -> UpdateStatistics:
    """Take one optimizer step on all learners together; return the statistics, by the index of `rows`.

    With `entropies` they have each token's, of unscored rows.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    facts = learner_facts(learner_group)
    rows, owners = merge_equal_rows(rows)
    shares = _assign(
        learner_group, rows, lambda part, shared: update_costs(facts.model, part, beta=facts.beta, shared=shared)
    )
    batches: Any = [[rows[i] for i in indices] for indices in shares]  # RLlib expects MultiAgentBatch
    with _learner_errors(learner_group):
        # RLlib declares dictionaries, which its own learners return.
        results: Any = learner_group.update(training_data=TrainingData(batches=batches), lr=lr, entropies=entropies)
    _check_results(learner_group, results)
    total = UpdateStatistics()
    for indices, result in zip(shares, results, strict=True):
        by_row: dict[str, Any] = {
            name: {indices[place]: values for place, values in getattr(result, name).items()}
            for name in UpdateStatistics.BY_ROW
        }
        total = total.merge(replace(result, **by_row))
    of_all: dict[str, Any] = {name: _of_all(getattr(total, name), owners) for name in UpdateStatistics.BY_ROW}
    return replace(total, **of_all)


def _of_all(values: dict[int, np.ndarray], owners: Sequence[int]) -> dict[int, np.ndarray]:
    """Give each row the values of the one that it was merged into."""
    return {row: values[owner] for row, owner in enumerate(owners) if owner in values}


def score_rows(
    learner_group: LearnerGroup, rows: Sequence[TrainingSample], *, entropy: bool, under: ScoringModel = "policy"
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return log-probs (and entropies) of each row's response tokens under the current policy, float32 [L].

    `under` names another model: `reference`, which learners have where `BaseConfig.needs_reference` says so, or
    `teacher`, which they have where there are `BaseConfig.teacher_settings`.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    if not rows:
        return []
    model = learner_facts(learner_group).model
    rows, owners = merge_equal_rows(rows)
    shares = _assign(learner_group, rows, lambda part, shared: scoring_costs(model, part, shared=shared))
    parts = [[rows[i] for i in indices] for indices in shares]
    if learner_group.is_local:
        with _learner_errors(learner_group):
            scored = [_local_learner(learner_group).score(parts[0], entropy=entropy, under=under)]
    else:
        references = [ray.put(part) for part in parts]
        scored = each_learner(
            learner_group,
            lambda learner: learner.score(ray.get(references[learner._learner_index]), entropy=entropy, under=under),
        )
    results: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    for indices, part in zip(shares, scored, strict=True):
        results.update(zip(indices, part, strict=True))
    return [results[owner] for owner in owners]


def _assign(
    learner_group: LearnerGroup, rows: Sequence[TrainingSample], cost: Callable[[Sequence[TrainingSample], bool], float]
) -> list[list[int]]:
    """Assign rows to learners by cost; those of one prompt stay together where learners compute it once."""
    if len(learner_group) <= 1:
        return [list(range(len(rows)))]
    shared = learner_facts(learner_group).shares_prompts
    groups = prompt_groups([row.parts for row in rows]) if shared else [[index] for index in range(len(rows))]
    return assign_groups(groups, lambda part: cost([rows[i] for i in part], shared), max(1, len(learner_group)))


def learner_facts(learner_group: LearnerGroup) -> LearnerFacts:
    """Return the facts of the first learner's model and device; cached.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    if learner_group not in _FACTS:
        if learner_group.is_local:
            _FACTS[learner_group] = _local_learner(learner_group).facts
        else:
            _FACTS[learner_group] = each_learner(learner_group, lambda learner: learner.facts)[0]
    return _FACTS[learner_group]


def tensor_buckets(
    learner_group: LearnerGroup, kind: Kind, max_bytes: int = BUCKET_BYTES
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the learners' whole tensors, on the CPU, in buckets: the driver's memory holds one bucket at a time.

    Args:
        learner_group: RLlib's LearnerGroup.
        kind: see `GRPOLearner.open_buckets`.
        max_bytes: size of a bucket; a larger tensor has one of its own.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    each_learner(learner_group, lambda learner: learner.open_buckets(kind, max_bytes))
    while True:
        parts = each_learner(learner_group, lambda learner: learner.next_bucket())
        present = [part for part in parts if part is not None]
        if len(present) < len(parts):
            return
        yield {name: tensor for part in present for name, tensor in part.items()}


def put_tensors(learner_group: LearnerGroup, kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
    """Load tensors from `tensor_buckets` into this group of learners, or another.

    Raises:
        ValueError: a name or a shape that the model does not have.
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    reference = ray.put(tensors) if learner_group.is_remote else tensors

    def put(learner: GRPOLearner) -> None:
        learner.put_bucket(kind, ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference)

    each_learner(learner_group, put)


def set_version(learner_group: LearnerGroup, version: int) -> None:
    """Set the version of the learners' weights."""

    def put(learner: GRPOLearner) -> None:
        learner._weights_seq_no = version

    each_learner(learner_group, put)


def each_learner(learner_group: LearnerGroup, function: Callable[[GRPOLearner], T]) -> list[T]:
    """Run a function on all learners at the same time, as collectives need; return its results.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    call: Any = function  # RLlib declares a second argument, which it does not pass
    results = [result.get() for result in learner_group.foreach_learner(call)]
    _check_results(learner_group, results)
    return results


def _local_learner(learner_group: LearnerGroup) -> GRPOLearner:
    return cast(GRPOLearner, learner_group._learner)


@contextmanager
def _learner_errors(learner_group: LearnerGroup) -> Iterator[None]:
    """Raise `LearnerDied` for a call that fails because a learner is gone or out of memory.

    RLlib raises the first error that it sees. When a learner is gone, that may be another's, whose collective failed.
    """
    try:
        yield
    except (ray.exceptions.RayError, torch.OutOfMemoryError) as error:
        if learner_group.is_remote and not isinstance(error, _DIED):
            _check_results(learner_group, _ping(learner_group))
        explained = _to_error(learner_group, [error])
        if explained is error:
            raise
        raise explained from error


def _ping(learner_group: LearnerGroup) -> list[Any]:
    """Ping learners: None if alive, even if busy, else the error."""

    def ping(*_: Any) -> None: ...

    pings = learner_group.foreach_learner(ping, healthy_only=False, timeout_seconds=PING_TIMEOUT_S)
    results: list[Any] = [each.get() for each in pings]
    return results + [None] * (len(learner_group) - len(results))


def _check_results(learner_group: LearnerGroup, results: Sequence[Any]) -> None:
    """Raise unless every learner returned a result."""
    errors = [result for result in results if isinstance(result, Exception)]
    if errors or len(results) != max(1, len(learner_group)):
        raise _to_error(learner_group, errors, answered=len(results) - len(errors))


def _to_error(learner_group: LearnerGroup, errors: Sequence[Exception], answered: int | None = None) -> Exception:
    """Choose the error to raise: a dead learner first, which may have caused the others' errors."""
    expected = max(1, len(learner_group))
    answered = expected - len(errors) if answered is None else answered
    if answered + len(errors) < expected or any(isinstance(error, _DIED) for error in errors):
        return LearnerDied(
            f"only {answered} of {expected} learners answered: one died, or was killed for its memory; "
            "fix: resume from the last checkpoint with --resume"
        )
    for error in errors:
        cause = getattr(error, "cause", None) or error  # what Ray wraps
        if isinstance(cause, torch.OutOfMemoryError):
            reason = next(iter(str(cause).splitlines()), "")
            return LearnerOutOfMemory(
                f"a learner ran out of memory ({reason}); "
                "fix: resume from the last checkpoint with --resume and a smaller learners.token_budget"
            )
    return errors[0]


class LearnerDied(RunError):
    """A learner is gone; the run can resume from its last checkpoint."""


class LearnerOutOfMemory(LearnerDied):
    """A learner ran out of memory; the run can resume with a smaller token budget."""
