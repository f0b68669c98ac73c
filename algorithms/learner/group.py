"""Calls to the learner group: rows are assigned by cost, and results come back in the rows' order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.learner.batch import TrainingSample
from algorithms.learner.calls import Answers, call_learners
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.learner.flops import LearnerFacts, scoring_costs, update_costs
from algorithms.learner.forward import ScoringModel, Statistic
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.prompt_groups import assign_groups, prompt_groups
from algorithms.learner.update import UpdateStatistics
from algorithms.learner.weights import Kind
from algorithms.utils.errors import RunError

T = TypeVar("T")

_FACTS: WeakKeyDictionary[LearnerGroup, LearnerFacts] = WeakKeyDictionary()

BUCKET_BYTES = 4 * 2**30

# Ray's memory monitor raises an error of its own.
_DIED = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError)


def update_learners(
    learner_group: LearnerGroup, rows: Sequence[TrainingSample], lr: float, *, entropies: bool = False
) -> UpdateStatistics:
    """Take one optimizer step on all learners together; return the statistics, by the index of `rows`.

    With `entropies` they have each token's, of unscored rows.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    facts = learner_facts(learner_group)
    rows, owners = merge_equal_rows(rows)
    shares = _assign(
        learner_group,
        rows,
        lambda part, shared: update_costs(facts.model, part, reference=facts.reference, shared=shared),
    )
    batches = [[rows[i] for i in indices] for indices in shares]
    results = _each_with_its_part(
        learner_group,
        batches,
        # RLlib expects MultiAgentBatch.
        lambda learner, batch: learner.update(training_data=TrainingData(batch=batch), lr=lr, entropies=entropies),
    )
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
    learner_group: LearnerGroup,
    rows: Sequence[TrainingSample],
    *,
    entropy: bool,
    under: ScoringModel = "policy",
    statistic: Statistic = "logprobs",
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return log-probs (and entropies) of each row's response tokens under the current policy, float32 [L].

    `under` names another model: `reference`, which learners have where `BaseConfig.needs_reference` says so, or
    `teacher`, which they have where there are `BaseConfig.teacher_settings`. Another `statistic` is in the place of
    log-probs.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    if not rows:
        return []
    model = learner_facts(learner_group).model
    rows, owners = merge_equal_rows(rows)
    shares = _assign(learner_group, rows, lambda part, shared: scoring_costs(model, part, shared=shared))
    parts = [[rows[i] for i in indices] for indices in shares]
    scored = _each_with_its_part(
        learner_group,
        parts,
        lambda learner, part: learner.score(part, entropy=entropy, under=under, statistic=statistic),
    )
    results: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    for indices, part in zip(shares, scored, strict=True):
        results.update(zip(indices, part, strict=True))
    return [results[owner] for owner in owners]


def find_deviations(learner_group: LearnerGroup, rows: Sequence[TrainingSample]) -> dict[ScoringModel, str]:
    """Return what is wrong with the learners' log-probs, see `GRPOLearner.find_deviations`.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    given = list(rows)
    found = each_learner(learner_group, lambda learner: learner.find_deviations(given))
    return {name: next(filter(None, (each[name] for each in found)), "") for name in found[0]}


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
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    if learner_group not in _FACTS:
        if learner_group.is_local:
            _FACTS[learner_group] = cast(GRPOLearner, learner_group._learner).facts
        else:
            _FACTS[learner_group] = each_learner(learner_group, lambda learner: learner.facts)[0]
    return _FACTS[learner_group]


def tensor_buckets(learner_group: LearnerGroup, kind: Kind) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the learners' whole tensors, on the CPU, in buckets: the driver's memory holds one bucket at a time.

    Args:
        learner_group: RLlib's LearnerGroup.
        kind: see `GRPOLearner.open_buckets`.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    each_learner(learner_group, lambda learner: learner.open_buckets(kind, BUCKET_BYTES))
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
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    _each_with(learner_group, tensors, lambda learner, given: learner.put_bucket(kind, given))


def put_weights_as_rllib(learner_group: LearnerGroup, weights: Mapping[str, Any]) -> None:
    """Load RLlib's form of the weights, `Learner.get_state`'s module by module; their version stays.

    Raises:
        RuntimeError: a name or a shape that the model does not have.
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    state = {COMPONENT_RL_MODULE: weights}
    _each_with(learner_group, state, lambda learner, given: learner.set_state(given))


def set_version(learner_group: LearnerGroup, version: int) -> None:
    """Set the version of the learners' weights."""

    def put(learner: GRPOLearner) -> None:
        learner._weights_seq_no = version

    each_learner(learner_group, put)


def each_learner(learner_group: LearnerGroup, function: Callable[[GRPOLearner], T]) -> list[T]:
    """Run a function on all learners at the same time, as collectives need; return its results.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised.
    """
    with _local_errors():
        answers = call_learners(learner_group, function)
    if answers.errors or len(answers.results) != max(1, len(learner_group)):
        raise _to_error(learner_group, answers)
    return answers.results


def _each_with(learner_group: LearnerGroup, data: Any, function: Callable[[GRPOLearner, Any], T]) -> list[T]:
    """Run a function on all learners, each with all of the data."""
    reference = ray.put(data) if learner_group.is_remote else data

    def call(learner: GRPOLearner) -> T:
        # waits: Ray raises when the machine that holds it is lost
        return function(learner, ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference)

    return each_learner(learner_group, call)


def _each_with_its_part(
    learner_group: LearnerGroup, parts: Sequence[Any], function: Callable[[GRPOLearner, Any], T]
) -> list[T]:
    """Run a function on all learners, each with its part of the data."""
    if learner_group.is_local:
        return each_learner(learner_group, lambda learner: function(learner, parts[0]))
    references = [ray.put(part) for part in parts]
    # waits: Ray raises when the machine that holds it is lost
    return each_learner(learner_group, lambda learner: function(learner, ray.get(references[learner._learner_index])))


@contextmanager
def _local_errors() -> Iterator[None]:
    """Raise `LearnerOutOfMemory` for the learner in this process, whose other errors are raised as they are."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(error) from error


def _to_error(learner_group: LearnerGroup, answers: Answers[Any]) -> Exception:
    """Choose the error to raise: full memory first, then a dead learner, which may have caused the others' errors."""
    for error in answers.errors:
        cause = getattr(error, "cause", None) or error  # what Ray wraps
        if isinstance(cause, torch.OutOfMemoryError):
            return _out_of_memory(cause)
    died = sum(isinstance(error, _DIED) for error in answers.errors)
    if died or answers.silent or not answers.errors:
        alive, expected = answers.called - died - answers.silent, max(1, len(learner_group))
        reason = "learners answered: one died, or was killed for its memory"
        if answers.silent:
            reason = "learners answered: one gave no sign of life, and was killed"
        fix = "resume from the last checkpoint with --resume"
        return LearnerDied(f"only {alive} of {expected} {reason}; fix: {fix}")
    cause = getattr(answers.errors[0], "cause", None)
    return cause if isinstance(cause, RunError) else answers.errors[0]  # Ray's text has the traceback too


def _out_of_memory(error: Exception) -> "LearnerOutOfMemory":
    reason = next(iter(str(error).splitlines()), "")
    return LearnerOutOfMemory(
        f"a learner ran out of memory ({reason}); "
        "fix: resume from the last checkpoint with --resume and a smaller learners.token_budget"
    )


class LearnerDied(RunError):
    """A learner is gone; the run can resume from its last checkpoint."""


class LearnerOutOfMemory(LearnerDied):
    """A learner ran out of memory; the run can resume with a smaller token budget."""
