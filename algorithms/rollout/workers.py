"""The pool of env runners: it rolls requests out, in training with weights that are provably the learners'."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import ray
import torch
from ray.exceptions import RayError
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.base import BaseConfig
from algorithms.config.placement import TransferKind
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.metrics import DispatchMetrics, GradingCounts, completion_metrics
from algorithms.rollout.scheduler import DispatchPlan, DispatchReport, ExpectedLengths, dispatch
from algorithms.rollout.supervisor import Weights, WorkerSupervisor
from algorithms.rollout.types import OnProgress, Request, Rollout
from algorithms.rollout.weight_sync.choice import EngineSleep, NoSleep, choose_engine_sleep, choose_transfer
from algorithms.rollout.weight_sync.object_store import AsLoaded
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights, WeightTransfer
from algorithms.utils.process import native_stderr_held_back
from algorithms.utils.starting import ShownStart

GRADING_COUNTS_TIMEOUT_S = 2.0
MOST_ERRORS_REPORTED = 20
STOP_S = 5.0

_logger = logging.getLogger(__name__)


class RolloutWorkers:
    """Env runners that hold the current policy.

    Args:
        runner_group: with a local runner or remote ones.
        learner_group: the source of the weights; None: the engines keep the model that they have loaded.
        config: of the algorithm or the evaluation.
    """

    def __init__(self, runner_group: EnvRunnerGroup, learner_group: LearnerGroup | None, config: BaseConfig) -> None:
        self.training = training = learner_group is not None
        self.group, self.learner_group = runner_group, cast(LearnerGroup, learner_group)  # `AsLoaded` needs none
        self.settings = config.env_runners_settings
        self.transfer: WeightTransfer = choose_transfer(config) if training else AsLoaded()
        self.engine_sleep: EngineSleep = choose_engine_sleep(config) if training else NoSleep()
        self.version = -1
        self.supervisor = self._make_supervisor() if runner_group.num_remote_env_runners() else None
        # A batch of the embedded engine cannot be added to while it decodes.
        continuous_batching = self.settings.engine != "transformers"
        self.plan = DispatchPlan.of(continuous_batching=continuous_batching, max_num_seqs=self.settings.max_num_seqs)
        self.lengths = ExpectedLengths()
        self._restarts_before = 0
        self._sent: Weights | None = None
        self._hung_reported = 0
        self._ahead: Background[list[Rollout]] | None = None
        self._dispatches, self._grading = DispatchMetrics(), GradingCounts()
        if training:
            self._grading.added(self._grading_totals())
        self._errors_reported: set[str] = set()
        self.push_weights()

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Run every request; rollouts come back sorted by request id.

        Args:
            requests: what to run.
            on_progress: called now and then with how many of how many are done.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner keeps sampling with other weights than were pushed last.
        """
        if self.supervisor is None:
            report = self._rollout_locally(requests, on_progress)
        else:
            report = dispatch(self.supervisor, self.lengths.longest_first(requests), self.plan, on_progress)
        if self.training:  # an evaluation has no steps, and reports errors as verdicts
            runners = 1 if self.supervisor is None else len(self.supervisor.runners)
            self._dispatches.add(report, runners, self._grading.added(self._grading_totals()))
            self._report_errors(report.rollouts)
        self.lengths.observe(report.rollouts)
        return report.rollouts

    def start(self, requests: Sequence[Request]) -> None:
        """Begin to roll out with the weights as they are, while the learners work; `finish` waits for the rollouts.

        Raises:
            RuntimeError: others are being rolled out.
        """
        if self._ahead is not None:
            raise RuntimeError("requests are being rolled out already; finish() them first")
        # A runner that is replaced meanwhile needs these weights, and the learners will not have them any more.
        self._current_weights()
        self._ahead = Background(lambda: self.rollout(requests))

    def finish(self) -> list[Rollout]:
        """Wait for what `start` began; raises what `rollout` raises."""
        if self._ahead is None:
            raise RuntimeError("no requests are being rolled out; start() them first")
        ahead, self._ahead = self._ahead, None
        return ahead.result()

    def close(self) -> None:
        """Give up what is being rolled out."""
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
        """Report what was requested, what came back, and what went wrong on the way since the last call."""
        hung = self.supervisor.counts.hung if self.supervisor else 0
        new_hung, self._hung_reported = hung - self._hung_reported, hung
        return {
            **completion_metrics(requests, rollouts),
            "rollout/runner_restarts": float(self.restarts),
            "rollout/hung": float(new_hung),
            **self._dispatches.take(),
            "rollout/engine": self.settings.engine,
            "rollout/weight_transfer": str(self.weight_transfer),
        }

    @property
    def weight_transfer(self) -> TransferKind:
        """The way that the weights take, after whatever could not be set up."""
        return self.transfer.kind

    def forget_counts(self) -> None:
        """Leave what was rolled out since the last `metrics` out of the next: an evaluation is no part of a step."""
        self._dispatches.forget()

    def push_weights(self) -> None:
        """Send the learners' weights to every runner, and note their version.

        A runner that does not take them in time is lost, and gets them when it has been replaced.
        """
        self._sent, started = None, time.monotonic()
        try:
            self.version = self.transfer.push(self.learner_group, self.group, self.settings.timeout_s)
        except NoRunnerTookWeights:  # they are replaced when there is something to roll out
            self.version = self._current_weights()[0]
        if self.supervisor is not None:
            healthy = set(self.group.healthy_env_runner_ids())
            lost = [runner.number for runner in self.supervisor.ready() if runner.number not in healthy]
            silent = time.monotonic() - started >= self.settings.timeout_s
            self.supervisor.counts.hung += len(lost) if silent else 0
            self.supervisor.confirm(self.version, dict.fromkeys(lost, "did not take weights in time, or died"))

    def sleep_engines(self) -> None:
        """Let engines that share the learners' GPUs give their memory back, until the next `push_weights`."""
        self.engine_sleep.begin(self.group, self.settings.timeout_s)

    def _make_supervisor(self) -> WorkerSupervisor:
        manager = self.group._worker_manager
        return WorkerSupervisor(
            manager.actors(),
            timeout_s=self.settings.timeout_s,
            weights=self._current_weights,
            on_health=lambda number, healthy: manager.set_actor_state(number, healthy=healthy),
        )

    def _current_weights(self) -> Weights:
        """The weights of the last push, through Ray's object store, for a runner that comes back."""
        if self._sent is None:
            self._sent = self.transfer.message(self.learner_group)
        return self._sent

    def _rollout_locally(self, requests: Sequence[Request], on_progress: OnProgress | None) -> DispatchReport:
        runner = cast(LLMEnvRunner, self.group.local_env_runner)
        chunk = self.settings.max_num_seqs
        if self.training:
            chunk = max(1, min(chunk, -(-len(requests) // 2))) if on_progress else len(requests)
        started, engine_before = time.perf_counter(), runner.episode_runner.engine_seconds
        return DispatchReport(
            runner.rollout(requests, on_progress, chunk),
            seconds=time.perf_counter() - started,
            engine_seconds=runner.episode_runner.engine_seconds - engine_before,
        )

    def _report_errors(self, rollouts: Sequence[Rollout]) -> None:
        """Log what an environment raised, each message once: the rollouts themselves are left out of training."""
        for rollout in rollouts:
            new = rollout.error is not None and rollout.error not in self._errors_reported
            if new and len(self._errors_reported) < MOST_ERRORS_REPORTED:
                self._errors_reported.add(str(rollout.error))
                _logger.warning("an episode of query %s was left out: %s", rollout.uid, rollout.error)

    def _grading_totals(self) -> dict[int, dict[str, int]]:
        """Counts of the graders of each runner's process, of this run or not; without the silent ones."""
        if self.supervisor is None:
            return {0: cast(LLMEnvRunner, self.group.local_env_runner).get_grading_counts()}
        sent = {runner.handle.get_grading_counts.remote(): runner.number for runner in self.supervisor.ready()}
        answered = ray.wait(list(sent), num_returns=len(sent), timeout=GRADING_COUNTS_TIMEOUT_S)[0] if sent else []
        totals = {}
        for reference in answered:
            with contextlib.suppress(RayError):  # a runner that died has no counts; the next call to it shows that
                totals[sent[reference]] = ray.get(reference)
        return totals


@contextlib.contextmanager
def inference_workers(
    config: BaseConfig, start_ray: Callable[[BaseConfig], object] = lambda config: None
) -> Iterator[RolloutWorkers]:
    """Start engines that load the model once and only answer; they are freed at the end.

    Args:
        config: of the evaluation; above 0, `env_runners.num_env_runners` is the number of actors.
        start_ray: called with the configuration before actors are made.
    """
    config = _with_the_gpu(config)
    config.validate()
    remote = config.env_runners_settings.num_env_runners > 0
    if remote:
        start_ray(config)
    with native_stderr_held_back() as seen, ShownStart(stream=seen):
        group = EnvRunnerGroup(config=config, local_env_runner=False) if remote else cast(Any, _LocalGroup(config))
        workers = RolloutWorkers(group, None, config)
    try:
        yield workers
    finally:
        workers.close()
        group.stop()


class _LocalGroup:
    """One env runner in this process, called as RLlib's EnvRunnerGroup is; it needs no Ray."""

    def __init__(self, config: BaseConfig) -> None:
        self.local_env_runner = LLMEnvRunner(config=config, worker_index=0)

    def num_remote_env_runners(self) -> int:
        return 0

    def stop(self) -> None:
        self.local_env_runner.stop()


def _with_the_gpu(config: BaseConfig) -> BaseConfig:
    """Give an engine in this process the GPU that there is, whether or not one was configured."""
    runners = config.env_runners_settings
    if runners.num_env_runners or runners.num_gpus_per_env_runner or not torch.cuda.is_available():
        return config
    changed: BaseConfig = config.copy().apply(
        {"env_runners": {"num_gpus_per_env_runner": runners.tensor_parallel_size}}
    )
    return changed


T = TypeVar("T")


class Background(Generic[T]):
    """A call that runs beside its maker; it does not keep the process alive.

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
        """Wait for the end of the call, however it ends, but not forever."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # raised again by `result`
            self._error = error
