"""A pool of one env runner in this process; it runs in the thread that collects its rollouts."""

import math
from collections.abc import Collection, Sequence

from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.remote_runner import Call, RemoteRunner
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Request, RunnerReport
from r3env import grading


class LocalPool(WorkerSupervisor):
    """One runner without an actor: its errors are the caller's, and nobody replaces it.

    Args:
        runner: in this process.
    """

    longest_poll_s = math.inf

    def __init__(self, runner: LLMEnvRunner) -> None:
        super().__init__({0: _Handle(runner)}, timeout_s=math.inf, weights=lambda: None)
        self._local = runner

    def poll(self, seconds: float) -> list[tuple[RemoteRunner, Call, RunnerReport]]:
        """Advance the runner; it takes no further call until everything that it was given has ended."""
        (runner,) = self.ready()
        if not runner.calls:
            return []
        call = next(reversed(runner.calls.values()))
        report = self._local.advance(seconds=seconds)
        if not report.unfinished:
            runner.calls.clear()
        return [(runner, call, report)] if call.round == self.round else []  # else nobody waits for it any more

    def give_weights_again(self, runner: RemoteRunner, found: set[int]) -> None:
        """Refuse: nothing but a push changes the weights of this engine."""
        raise RuntimeError(f"the engine has weights {sorted(found)}, not {self.version}")

    def grading_totals(self) -> dict[int, dict[str, int]]:
        """Return the counts of this process."""
        return {0: grading.statistics()}


class _Handle:
    """Takes requests as an actor's handle does, and leaves the work to `poll`."""

    def __init__(self, runner: LLMEnvRunner) -> None:
        self._runner = runner

    @property
    def advance(self) -> "_Handle":
        return self

    def remote(self, requests: Sequence[Request], withdraw: Collection[int], seconds: float) -> object:
        """Drop some episodes and take more; the returned object stands for the call."""
        self._runner.episode_runner.withdraw(withdraw)
        self._runner.episode_runner.add(requests)
        return object()
