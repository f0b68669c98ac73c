"""The interface of every transfer from the learners to the engines, and calls to all learners and env runners."""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.placement import TransferKind
from algorithms.learner.calls import call_learners
from algorithms.learner.group import LearnerDied
from algorithms.utils.errors import RunError

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class WeightTransfer(Protocol):
    """A transfer of weights from the learners to the engines."""

    @property
    def kind(self) -> TransferKind:
        """Which transfer the next push uses."""
        ...

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """Give the runners the learners' weights.

        A runner holds either the old version, or the new one, or reports that it holds none: what it samples in between
        is refused. One that does not confirm the new version is marked unhealthy.

        Args:
            learner_group: RLlib's LearnerGroup.
            runner_group: RLlib's EnvRunnerGroup.
            timeout_s: for each call to the runners.

        Returns:
            The version that the runners now hold.

        Raises:
            LearnerDied: a learner did not answer.
            NoRunnerTookWeights: no runner confirmed the version.
            TransferUnavailable: this way cannot be taken here.
        """
        ...

    def publish(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]] | None:
        """Put the learners' weights where runners fetch them by themselves.

        Returns:
            Version and `set_state` argument; None: this way takes learners and all runners at the same time.
        """
        ...

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Return the learners' version and what a single runner's `set_state` takes, for one that comes back.

        Through Ray's object store, whatever way `push` takes: the others need not stop for it.
        """
        ...


class TransferUnavailable(RunError):
    """This transfer is not possible here; no engine has been changed.

    Args:
        reason: without a fix: `env_runners.weight_transfer: auto` takes another way.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"env_runners.weight_transfer: {reason}; fix: env_runners.weight_transfer=auto")
        self.reason = reason


class NoRunnerTookWeights(RuntimeError):
    """No env runner holds the weights that were pushed."""


def require_version(answers: dict[int, int], version: int) -> None:
    """Refuse runners that confirm another version than they were sent.

    Raises:
        RuntimeError: they do.
    """
    wrong = {number: answer for number, answer in answers.items() if answer != version}
    if wrong:
        raise RuntimeError(f"env runners hold weights {wrong} by number, {version} was pushed")


@dataclass(frozen=True)
class Failure:
    """The error of a runner, in words: an exception would end its actor silently."""

    message: str


def on_learners(group: LearnerGroup, call: Callable[[Any], T]) -> list[T]:
    """Call a function with each learner, all at the same time.

    Raises:
        LearnerDied: a learner did not answer, or failed.
    """
    answers = call_learners(group, call)
    failed = next(iter(answers.errors), None)
    cause = getattr(failed, "cause", None)
    if isinstance(cause, LearnerDied):  # it has said why
        raise LearnerDied(str(cause)) from failed
    if failed is not None or len(answers.results) != max(1, len(group)):
        gone = "one gave no sign of life, and was killed" if answers.silent else "one died"
        reason = next(iter(str(failed).splitlines()), "") if failed is not None else gone
        fix = "resume from the last checkpoint with --resume"
        raise LearnerDied(f"a learner could not send its weights: {reason}; fix: {fix}") from failed
    return answers.results


class RunnerCalls:
    """Calls to the runners of one push: one that fails or does not answer is not called again, and counts as unhealthy.

    Args:
        group: of the runners.
        timeout_s: for each call.
    """

    def __init__(self, group: EnvRunnerGroup, timeout_s: float) -> None:
        self.group, self.timeout_s = group, timeout_s
        self.local = group.num_remote_env_runners() == 0
        healthy = [] if self.local else group.healthy_env_runner_ids()
        self.ids = [0] if self.local else list(healthy)

    def __call__(self, call: Callable[[Any], T]) -> dict[int, T]:
        """Call a function with each runner, all at the same time; returns the answers by runner id.

        Raises:
            NoRunnerTookWeights: none of them answered.
        """
        if self.local:
            return {0: call(self.group.local_env_runner)}
        answers = self.attempt(call)
        lost = {number: answer.message for number, answer in answers.items() if isinstance(answer, Failure)}
        held = {number: answer for number, answer in answers.items() if not isinstance(answer, Failure)}
        self._give_up(lost)
        if not self.ids:
            raise _none_took(lost)
        return held

    def give_up_all(self, reason: str) -> NoReturn:
        """End a push that the runners that are left cannot take to its end.

        Raises:
            NoRunnerTookWeights: always.
        """
        lost = dict.fromkeys(self.ids, reason)
        self._give_up(lost)
        raise _none_took(lost)

    def attempt(self, call: Callable[[Any], T], timeout_s: float | None = None) -> dict[int, T | Failure]:
        """Do the same, but leave failed runners as they are, and return a `Failure` for each.

        Args:
            call: what to call with each runner.
            timeout_s: for this call; None: as for all others.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if self.local:
            return {0: _attempt(call, self.group.local_env_runner)[1]}
        answers = dict(
            self.group.foreach_env_runner(
                functools.partial(_attempt, call),
                local_env_runner=False,
                remote_worker_ids=self.ids,
                timeout_seconds=timeout_s,
            )
        )
        silent = Failure(f"no answer in {timeout_s:g} s, or it died")
        return {number: answers.get(number, silent) for number in self.ids}

    def _give_up(self, lost: dict[int, str]) -> None:
        """Mark runners as unhealthy for RLlib; the next rollout has them replaced."""
        for number, reason in lost.items():
            _logger.warning("env runner %d did not take the weights: %s", number, reason)
            self.group._worker_manager.set_actor_state(number, healthy=False)
            self.ids.remove(number)


def _none_took(lost: Mapping[int, str]) -> NoRunnerTookWeights:
    reasons = "; ".join(sorted(set(lost.values()))) or "none is healthy"
    return NoRunnerTookWeights(f"no env runner took the weights: {reasons}")


def _attempt(call: Callable[[Any], Any], runner: Any) -> tuple[int, Any]:
    try:
        return runner.worker_index, call(runner)
    except Exception as error:  # returned to the driver, see Failure
        return runner.worker_index, Failure(in_a_line(error))


def in_a_line(error: Exception) -> str:
    """Return an error's text, without the advice that CUDA adds to each of its own."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def failures_of(answers: Mapping[Any, Any]) -> list[str]:
    """Return what went wrong, in words, each once."""
    return sorted({answer.message for answer in answers.values() if isinstance(answer, Failure)})


def process_id(runner: Any) -> int:
    """Return the process that a runner is in."""
    return os.getpid()
