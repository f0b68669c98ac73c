"""Hand explicit requests to env runners and collect every rollout, whatever runner dies on the way."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from algorithms.rollout.types import Request, Rollout

OnProgress = Callable[[int, int], None]

TAG = "rollout"
POLL_S = 0.05
PROBE_EVERY_S = 2.0


@dataclass
class DispatchReport:
    """What a dispatch did.

    Args:
        rollouts: one for each request, sorted by request id.
        restarts: env runners that died and came back on the way.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    restarts: int = 0


def dispatch(
    group: Any,
    requests: Sequence[Request],
    *,
    chunk: int,
    timeout_s: float,
    restore: Callable[[], int],
    on_progress: OnProgress | None = None,
) -> DispatchReport:
    """Play requests on a local env runner or on remote ones.

    Args:
        group: RLlib's EnvRunnerGroup.
        requests: what to play, each with an id of its own.
        chunk: requests handed to a remote runner at once.
        timeout_s: how long to wait without any rollout coming back.
        restore: probes dead runners, gives the recovered ones the current weights, and returns how many came back.
        on_progress: told how many of how many rollouts are there; a local runner then plays chunk by chunk.

    Raises:
        TimeoutError: no rollout came back for `timeout_s`.
    """
    if group.num_remote_env_runners() == 0:
        return DispatchReport(_play_locally(group.local_env_runner, requests, chunk, on_progress))
    return _RemoteDispatch(group, requests, chunk, timeout_s, restore, on_progress).run()


def _play_locally(
    runner: Any, requests: Sequence[Request], chunk: int, on_progress: OnProgress | None
) -> list[Rollout]:
    if on_progress is None:
        return sorted(runner.rollout(requests), key=lambda rollout: rollout.request_id)
    rollouts: list[Rollout] = []
    for start in range(0, len(requests), chunk):
        rollouts += runner.rollout(requests[start : start + chunk])
        on_progress(len(rollouts), len(requests))
    return sorted(rollouts, key=lambda rollout: rollout.request_id)


class _RemoteDispatch:
    """The state of one dispatch over remote runners: what waits, and who holds what."""

    def __init__(
        self,
        group: Any,
        requests: Sequence[Request],
        chunk: int,
        timeout_s: float,
        restore: Callable[[], int],
        on_progress: OnProgress | None,
    ) -> None:
        self.group, self.timeout_s, self.restore, self.on_progress = group, timeout_s, restore, on_progress
        self.waiting = deque(requests[i : i + chunk] for i in range(0, len(requests), chunk))
        self.held: dict[int, Sequence[Request]] = {}
        self.done: dict[int, Rollout] = {}
        self.restarts = 0
        self.expected = len(requests)
        self.last_progress = time.monotonic()
        self.next_probe = 0.0

    def run(self) -> DispatchReport:
        while len(self.done) < self.expected:
            self._take_back_from_the_dead()
            self._send()
            self._collect()
            self._probe()
            if time.monotonic() - self.last_progress > self.timeout_s:
                raise TimeoutError(
                    f"no rollout came back for {self.timeout_s:.0f} s ({len(self.done)} of {self.expected} done); "
                    "raise env_runners.timeout_s if responses take longer than that"
                )
        return DispatchReport([self.done[key] for key in sorted(self.done)], self.restarts)

    def _take_back_from_the_dead(self) -> None:
        healthy = set(self.group.healthy_env_runner_ids())
        for runner in [runner for runner in self.held if runner not in healthy]:
            self.waiting.append(self.held.pop(runner))

    def _send(self) -> None:
        free = [runner for runner in self.group.healthy_env_runner_ids() if runner not in self.held]
        batches = {runner: self.waiting.popleft() for runner in free[: len(self.waiting)]}
        if not batches:
            return
        self.held.update(batches)
        self.group.foreach_env_runner_async(
            func=["rollout"] * len(batches),
            kwargs=[{"requests": list(batch)} for batch in batches.values()],
            remote_worker_ids=list(batches),
            tag=TAG,
        )

    def _collect(self) -> None:
        for runner, rollouts in self.group.fetch_ready_async_reqs(tags=TAG, timeout_seconds=POLL_S):
            self.held.pop(runner, None)
            self.done.update({rollout.request_id: rollout for rollout in rollouts})
            self.last_progress = time.monotonic()
            if self.on_progress:
                self.on_progress(len(self.done), self.expected)

    def _probe(self) -> None:
        unhealthy = self.group.num_healthy_remote_env_runners() < self.group.num_remote_env_runners()
        if unhealthy and time.monotonic() > self.next_probe:
            self.next_probe = time.monotonic() + PROBE_EVERY_S
            self.restarts += self.restore()
