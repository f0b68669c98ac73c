"""Call all learners at once. One that is stopped, or waits in a collective for one that failed, is killed."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError
from ray.rllib.core.learner.learner_group import LearnerGroup

from algorithms.utils import heartbeat

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
        silent: how many were killed because they gave no sign of life.
    """

    results: list[T]
    errors: list[Exception]
    called: int
    silent: int = 0


def call_learners(learner_group: LearnerGroup, function: Callable[[Any], T]) -> Answers[T]:
    """Run a function on all learners at the same time, as collectives need.

    A collective that one learner never joins would keep the others for the process group's timeout, half an hour.
    So after the first error the others have `GRACE_S`; those that have not answered then are killed. A call may take
    any time as long as its learner gives signs of life, see `algorithms.utils.heartbeat`; a silent one is killed.

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
    pulses = {reference: heartbeat.Pulse(manager.actors()[number]) for reference, number in calls.items()}
    deadline: float | None = None
    silent = 0
    while waiting:
        patience_s = heartbeat.LOOK_S if deadline is None else min(heartbeat.LOOK_S, deadline - time.monotonic())
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, patience_s))
        for reference in ready:
            number = calls[reference]
            try:
                results[number] = ray.get(reference)  # waits: it has answered
            except RayError as error:
                errors.append(error)
                manager.set_actor_state(number, healthy=False)
                deadline = deadline or time.monotonic() + GRACE_S
        if ready:
            continue
        if deadline is not None and time.monotonic() >= deadline:
            break
        for reference in [reference for reference in waiting if pulses[reference].is_gone()]:
            _logger.warning(
                "learner %d is ended: it gave no sign of life for %g s", calls[reference], heartbeat.SILENT_S
            )
            _kill(manager, calls[reference])
            waiting.remove(reference)
            silent += 1
            deadline = deadline or time.monotonic() + GRACE_S
    for reference in waiting:
        number = calls[reference]
        _logger.warning("learner %d is ended: it has not answered for %g s after another failed", number, GRACE_S)
        _kill(manager, number)
    return Answers([results[number] for number in sorted(results)], errors, len(numbers), silent)


def _kill(manager: Any, number: int) -> None:
    manager.set_actor_state(number, healthy=False)
    ray.kill(manager.actors()[number])
