"""The env runners as one thing that plays requests with weights that are provably the learners'."""

import contextlib
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError

from algorithms.rollout.scheduler import DispatchPlan, DispatchReport, OnProgress, dispatch
from algorithms.rollout.supervisor import Weights, WorkerSupervisor
from algorithms.rollout.types import Request, Rollout
from algorithms.rollout.weight_sync.calls import NoRunnerTookWeights
from algorithms.rollout.weight_sync.choice import choose_engine_sleep, choose_transfer
from algorithms.rollout.work_order import ExpectedLengths

COUNTS_TIMEOUT_S = 2.0
MOST_ERRORS_TOLD = 20
STOP_S = 5.0

_logger = logging.getLogger(__name__)


class RolloutWorkers:
    """Env runners that hold the current policy.

    Args:
        runner_group: RLlib's EnvRunnerGroup, with a local runner or remote ones.
        learner_group: RLlib's LearnerGroup, the source of the weights.
        config: of the algorithm.
    """

    def __init__(self, runner_group: Any, learner_group: Any, config: Any) -> None:
        self.group, self.learner_group = runner_group, learner_group
        self.settings = config.env_runners_settings
        self.transfer, self.resting = choose_transfer(config), choose_engine_sleep(config)
        self.version = -1
        self.supervisor = self._make_supervisor() if runner_group.num_remote_env_runners() else None
        # A batch of the embedded engine cannot be added to while it decodes.
        continuous_batching = self.settings.engine != "transformers"
        self.plan = DispatchPlan.of(continuous_batching=continuous_batching, max_num_seqs=self.settings.max_num_seqs)
        self.lengths = ExpectedLengths()
        self._restarts_before = 0
        self._sent: Weights | None = None
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._hung_told = 0
        self._ahead: Background[list[Rollout]] | None = None
        self._grading = GradingCounts()
        self._grading.added(self._grading_totals())
        self._errors_told: set[str] = set()
        self.push_weights()

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Play every request; rollouts come back sorted by request id.

        Args:
            requests: what to play.
            on_progress: told now and then how many of how many are done.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner goes on sampling with other weights than were pushed last.
        """
        if self.supervisor is None:
            report = self._play_locally(requests, on_progress)
            self._count(report, 1)
        else:
            report = dispatch(self.supervisor, self.lengths.longest_first(requests), self.plan, on_progress)
            self._count(report, len(self.supervisor.runners))
        self.lengths.observe(report.rollouts)
        self._tell_errors(report.rollouts)
        return report.rollouts

    def start(self, requests: Sequence[Request]) -> None:
        """Begin to play with the weights as they are, while the learners go on; `finish` waits for the rollouts.

        Raises:
            RuntimeError: others are being played.
        """
        if self._ahead is not None:
            raise RuntimeError("rollouts are being played already; finish() them first")
        # A runner that is replaced meanwhile needs these weights, and the learners will not have them any more.
        self._current_weights()
        self._ahead = Background(lambda: self.rollout(requests))

    def finish(self) -> list[Rollout]:
        """Wait for what `start` began; raises what `play` raises."""
        if self._ahead is None:
            raise RuntimeError("no rollouts are being played; start() them first")
        ahead, self._ahead = self._ahead, None
        return ahead.result()

    def close(self) -> None:
        """Give up what is being played."""
        if self.supervisor is not None:
            self.supervisor.closed = True
        if self._ahead is not None:
            self._ahead.wait(STOP_S)

    @property
    def restarts(self) -> int:
        """Runners that were lost and have come back, in the whole run."""
        return self._restarts_before + (self.supervisor.counts.restarts if self.supervisor else 0)

    @restarts.setter
    def restarts(self, total: int) -> None:
        self._restarts_before = total - (self.supervisor.counts.restarts if self.supervisor else 0)

    def metrics(self, requests: Sequence[Request], rollouts: Sequence[Rollout]) -> dict[str, float | str]:
        """What was asked for, what came back, and what went wrong on the way."""
        groups = {request.group for request in requests}
        completed = len(requests) == len(rollouts)
        incomplete = groups - {rollout.group for rollout in rollouts} if not completed else set()
        return {
            "rollout/prompts_expected": float(len(groups)),
            "rollout/prompts_completed": float(len(groups) - len(incomplete)),
            "rollout/runner_restarts": float(self.restarts),
            **self._dispatch_metrics(),
            "rollout/engine": self.settings.engine,
            "grading/timeouts": float(sum(rollout.verdict == "timeout" for rollout in rollouts)),
            "grading/no_answer": float(sum(rollout.verdict == "no_answer" for rollout in rollouts)),
            "rollout/environment_errors": float(sum(rollout.verdict == "environment_error" for rollout in rollouts)),
        }

    def push_weights(self) -> None:
        """Send the learners' weights to every runner, and remember their version.

        A runner that does not take them in time is lost, and gets them when it has been replaced.
        """
        self._sent, started = None, time.monotonic()
        try:
            self.version = self.transfer.push(self.learner_group, self.group, self.settings.timeout_s)
        except NoRunnerTookWeights:  # they are replaced when there is something to play
            self.version = self._current_weights()[0]
        if self.supervisor is not None:
            healthy = set(self.group.healthy_env_runner_ids())
            lost = [runner.number for runner in self.supervisor.ready() if runner.number not in healthy]
            silent = time.monotonic() - started >= self.settings.timeout_s
            self.supervisor.counts.hung += len(lost) if silent else 0
            self.supervisor.confirm(self.version, dict.fromkeys(lost, "did not take weights in time, or died"))

    def sleep(self) -> None:
        """Let engines that share the learners' GPUs give their memory back, until the next `push_weights`."""
        self.resting.begin(self.group, self.settings.timeout_s)

    def _make_supervisor(self) -> WorkerSupervisor:
        manager = self.group._worker_manager
        return WorkerSupervisor(
            manager.actors(),
            timeout_s=self.settings.timeout_s,
            weights=self._current_weights,
            on_health=lambda number, healthy: manager.set_actor_state(number, healthy=healthy),
        )

    def _current_weights(self) -> Weights:
        """What a runner that comes back is given: the weights of the last push, through Ray's object store."""
        if self._sent is None:
            self._sent = self.transfer.message(self.learner_group)
        return self._sent

    def _play_locally(self, requests: Sequence[Request], on_progress: OnProgress | None) -> DispatchReport:
        runner = self.group.local_env_runner
        chunk = max(1, min(self.settings.max_num_seqs, -(-len(requests) // 2))) if on_progress else len(requests)
        started, engine_before = time.perf_counter(), runner.player.engine_seconds
        return DispatchReport(
            runner.rollout(requests, on_progress, chunk),
            seconds=time.perf_counter() - started,
            engine_seconds=runner.player.engine_seconds - engine_before,
        )

    def _count(self, report: DispatchReport, runners: int) -> None:
        grading = self._grading.added(self._grading_totals())
        added = {f"grading/{kind}": float(count) for kind, count in grading.items()} | {
            "requeued": float(report.requeued),
            "stolen": float(report.stolen),
            "stale": float(report.stale),
            "play_seconds": report.seconds,
            "runner_seconds": runners * report.seconds,
            "engine_seconds": report.engine_seconds,
        }
        for name, value in added.items():
            self._counts[name] += value

    def forget_counts(self) -> None:
        """Leave what was played since the last `metrics` out of the next: an evaluation is no part of a step."""
        self._counts = defaultdict(float)

    def _dispatch_metrics(self) -> dict[str, float]:
        """What happened on the way since the last call."""
        counts, self._counts = self._counts, defaultdict(float)
        hung = self.supervisor.counts.hung if self.supervisor else 0
        new_hung, self._hung_told = hung - self._hung_told, hung
        busy = counts["engine_seconds"] / counts["runner_seconds"] if counts["runner_seconds"] else 1.0
        return {
            "rollout/hung": float(new_hung),
            "throughput/idle_share": max(0.0, 1.0 - busy),
            **rollout_times(
                play_s=counts["play_seconds"], engine_s=counts["engine_seconds"], runner_s=counts["runner_seconds"]
            ),
            **{f"rollout/{kind}": counts[kind] for kind in ("requeued", "stolen", "stale")},
            **{f"grading/{kind}": counts[f"grading/{kind}"] for kind in KINDS},
        }

    def _tell_errors(self, rollouts: Sequence[Rollout]) -> None:
        """Say what an environment raised, each message once: the rollouts themselves are left out of training."""
        for rollout in rollouts:
            new = rollout.error is not None and rollout.error not in self._errors_told
            if new and len(self._errors_told) < MOST_ERRORS_TOLD:
                self._errors_told.add(str(rollout.error))
                _logger.warning("an episode of query %s was left out: %s", rollout.uid, rollout.error)

    def _grading_totals(self) -> dict[int, dict[str, int]]:
        """What the graders of each runner's process have done so far, this run or not; without the silent ones."""
        if self.supervisor is None:
            return {0: self.group.local_env_runner.get_grading_counts()}
        asked = {runner.handle.get_grading_counts.remote(): runner.number for runner in self.supervisor.ready()}
        answered = ray.wait(list(asked), num_returns=len(asked), timeout=COUNTS_TIMEOUT_S)[0] if asked else []
        totals = {}
        for reference in answered:
            with contextlib.suppress(RayError):  # a runner that died has no counts; the next call to it tells
                totals[asked[reference]] = ray.get(reference)
        return totals


T = TypeVar("T")


class Background(Generic[T]):
    """A call that runs while its maker goes on; it does not keep the process alive.

    Args:
        work: what to call.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the end of the call; returns what it returned, and raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self, seconds: float) -> None:
        """Wait for the end of the call, however it ends, but not for ever."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # raised again by `result`
            self._error = error


KINDS = ("unread", "screened", "restarts")


class GradingCounts:
    """Turns counts that only grow, one set a process, into what was added since they were read last.

    The first reading of a process is its start: what it had counted by then was another run's.
    """

    def __init__(self) -> None:
        self._read: dict[int, Counter[str]] = {}

    def added(self, totals: Mapping[int, Mapping[str, int]]) -> Counter[str]:
        """What has been added, all processes together.

        Args:
            totals: counts by the number of the runner, of those that answered. A runner whose counts have fallen has
                a new process, which began at 0.
        """
        total: Counter[str] = Counter()
        for number, counts in totals.items():
            before = self._read.get(number)
            if before is not None:
                restarted = any(counts.get(kind, 0) < count for kind, count in before.items())
                total.update({k: n - (0 if restarted else before[k]) for k, n in counts.items()})
            self._read[number] = Counter(counts)
        return total


def rollout_times(*, play_s: float, engine_s: float, runner_s: float) -> dict[str, float]:
    """Split the time in which rollouts were played.

    Args:
        play_s: wall time.
        engine_s: in which an engine generated, added up over the runners.
        runner_s: wall time, added up over the runners.

    Returns:
        `time/generate`, a runner's mean; `time/grade`, what is left: environments and graders as far as generation
        does not hide them, and runners that wait for the last one.
    """
    generate = play_s * min(1.0, engine_s / runner_s) if runner_s > 0 else 0.0
    return {"time/generate": generate, "time/grade": play_s - generate}
