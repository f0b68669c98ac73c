"""Call all learners at once. When one fails, those that wait for it in a collective are ended, not waited for."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError
from ray.rllib.core.learner.learner_group import LearnerGroup

T = TypeVar("T")

# After the first error: for other learners' errors, one of which may be its cause.
GRACE_S = 10.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The answers of all learners to a call.

    Args:
        results: of those that returned, in the learners' order.
        errors: of the others, in the order in which they came; a learner that was ended has none.
        called: how many were called, or could have been.
    """

    results: list[T]
    errors: list[Exception]
    called: int


def call_learners(learner_group: LearnerGroup, function: Callable[[Any], T]) -> Answers[T]:
    """Run a function on all learners at the same time, as collectives need.

    A collective that one learner never joins would keep the others for the process group's timeout, half an hour.
    So after the first error the others have `GRACE_S`; those that have not answered then are killed.

    Args:
        learner_group: RLlib's LearnerGroup. A learner in this process is called directly, and raises its own errors.
        function: gets a GRPOLearner.
    """
    if learner_group.is_local:
        return Answers([function(learner_group._learner)], [], 1)
    manager: Any = learner_group._worker_manager
    numbers = manager.healthy_actor_ids()
    if len(numbers) < len(learner_group):  # the others would wait for those that have failed before
        return Answers([], [], len(numbers))
    # RLlib's `foreach_learner` waits for all.
    calls = {manager.actors()[number].apply.remote(function): number for number in numbers}
    results: dict[int, T] = {}
    errors: list[Exception] = []
    waiting: list[Any] = list(calls)
    deadline: float | None = None
    while waiting:
        patience_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=patience_s)
        if not ready:
            break
        number = calls[ready[0]]
        try:
            results[number] = ray.get(ready[0])
        except RayError as error:
            errors.append(error)
            manager.set_actor_state(number, healthy=False)
            deadline = time.monotonic() + GRACE_S if deadline is None else deadline
    for reference in waiting:
        number = calls[reference]
        _logger.warning("learner %d is ended: it has not answered for %g s after another failed", number, GRACE_S)
        manager.set_actor_state(number, healthy=False)
        ray.kill(manager.actors()[number])
    return Answers([results[number] for number in sorted(results)], errors, len(numbers))
