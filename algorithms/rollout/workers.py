"""The pool of env runners: it rolls out requests, in training with weights that are verified to be the learners'."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import ray
import torch
from ray.exceptions import RayError
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.base import BaseConfig
from algorithms.config.placement import TransferKind, engine_sleeps, transfer_kind
from algorithms.rollout.background import Attendant
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.lost_runners import Weights
from algorithms.rollout.metrics import DispatchMetrics, GradingCounts, completion_metrics
from algorithms.rollout.scheduler import DispatchPlan, DispatchReport, ExpectedLengths, dispatch
from algorithms.rollout.stream import RolloutStream, Ticket
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import OnProgress, Request, Rollout
from algorithms.rollout.weight_sync.choice import EngineSleep, NoSleep, choose_engine_sleep, choose_transfer
from algorithms.rollout.weight_sync.object_store import AsLoaded
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights, WeightTransfer
from algorithms.utils.process import native_stderr_held_back
from algorithms.utils.starting import ShownStart

GRADING_COUNTS_TIMEOUT_S = 2.0


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
        self._engines_sleep = training and engine_sleeps(config)
        self.version = -1
        self._sent: Weights | None = None
        self._learners_wait = False
        self._stores_weights = not training or transfer_kind(config) is TransferKind.OBJECT_STORE
        self.supervisor = self._make_supervisor() if runner_group.num_remote_env_runners() else None
        # A batch of the embedded engine cannot be added to while it decodes.
        continuous_batching = self.settings.engine != "transformers"
        self.plan = DispatchPlan.of(continuous_batching=continuous_batching, max_num_seqs=self.settings.max_num_seqs)
        self.lengths = ExpectedLengths()
        self._restarts_before = 0
        self._hung_reported = 0
        self.stream = self._make_stream(cast(Any, config).training_settings.max_off_policy_steps if training else 0)
        self._dispatches, self._grading = DispatchMetrics(), GradingCounts()
        if training:
            self._grading.added(self._grading_totals())
        self.push_weights()
        self._attendant = Attendant(self.supervisor) if self.supervisor is not None else None

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Run every request; return the rollouts sorted by request id.

        Args:
            requests: what to run.
            on_progress: called now and then with how many of how many are done.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner keeps sampling with other weights than were pushed last.
        """
        if self.stream is not None:
            return self._rollout_first(self.stream, requests, on_progress)
        if self.supervisor is None:
            report = self._rollout_locally(requests, on_progress)
        else:
            with self.supervisor.lock, self._waiting_learners():
                report = dispatch(self.supervisor, self.lengths.longest_first(requests), self.plan, on_progress)
        self._count(report)
        self.lengths.observe(report.rollouts)
        return report.rollouts

    def start(self, requests: Sequence[Request]) -> Ticket:
        """Begin to roll out, with the weights as they are and those that come; needs `training.max_off_policy_steps`.

        Returns:
            What `finish` or `abandon` takes.
        """
        return self._require_stream().add(self.lengths.longest_first(requests))

    def finish(self, ticket: Ticket) -> list[Rollout]:
        """Wait for the rollouts that `start` began; raises what `rollout` raises."""
        rollouts = self._require_stream().collect(ticket)
        self.lengths.observe(rollouts)
        return rollouts

    def abandon(self, ticket: Ticket) -> None:
        """Abandon the rollouts that `start` began."""
        self._require_stream().cancel(ticket)

    def close(self) -> None:
        """Abandon unfinished rollouts."""
        if self.supervisor is not None:
            self.supervisor.closed = True
        if self._attendant is not None:
            self._attendant.stop()
        if self.stream is not None:
            self.stream.close()

    @property
    def restarts(self) -> int:
        """The number of runners that were lost and have come back, in the whole run."""
        return self._restarts_before + (self.supervisor.counts.restarts if self.supervisor else 0)

    @restarts.setter
    def restarts(self, total: int) -> None:
        self._restarts_before = total - (self.supervisor.counts.restarts if self.supervisor else 0)

    def metrics(self, requests: Sequence[Request], rollouts: Sequence[Rollout]) -> dict[str, float | str]:
        """Report requests, results and errors since the last call."""
        if self.stream is not None:
            self._count(self.stream.take_report())
        hung = self.supervisor.counts.hung if self.supervisor else 0
        new_hung, self._hung_reported = hung - self._hung_reported, hung
        recoveries = self.supervisor.take_recoveries() if self.supervisor else []
        return {
            **completion_metrics(requests, rollouts),
            "rollout/runner_restarts": float(self.restarts),
            "rollout/runner_recovery_s": max(recoveries, default=0.0),
            "rollout/hung": float(new_hung),
            **self._dispatches.take(),
            "rollout/engine": self.settings.engine,
            "rollout/weight_transfer": str(self.weight_transfer),
        }

    @property
    def weight_transfer(self) -> TransferKind:
        """How the weights travel, after falling back from whatever could not be set up."""
        return self.transfer.kind

    def forget_counts(self) -> None:
        """Leave rollouts since the last `metrics` out of the next: an evaluation is no part of a step."""
        if self.stream is not None:
            self._count(self.stream.take_report())
        self._dispatches.forget()

    def push_weights(self) -> None:
        """Send the learners' weights to every runner, and note their version.

        A runner that does not take them in time is lost, and gets them when it has been replaced. What runs meanwhile
        goes on with the new weights. Where runners can fetch these by themselves, nobody waits until they have.
        """
        with self._runners_to_itself():
            first = self.version < 0  # an engine that cannot take weights at all is told of at once
            self._sent = None  # the object store need not hold the old ones beside the new ones
            if self.stream is not None and not first and (message := self.transfer.publish(self.learner_group)):
                self._sent, self.version = message, message[0]
                self._supervised().send_weights(*message)
                return
            started = time.monotonic()
            try:
                self.version = self.transfer.push(self.learner_group, self.group, self.settings.timeout_s)
            except NoRunnerTookWeights:  # they are replaced when there is something to roll out
                self.version = self._current_weights()[0]
            if self.supervisor is not None:
                self._confirm_push(self.supervisor, silent=time.monotonic() - started >= self.settings.timeout_s)

    def _confirm_push(self, supervisor: WorkerSupervisor, *, silent: bool) -> None:
        """Replace the runners that did not take the weights, and keep these for those that start."""
        healthy = set(self.group.healthy_env_runner_ids())
        lost = [runner.number for runner in supervisor.up() if runner.number not in healthy]
        supervisor.counts.hung += len(lost) if silent else 0
        reasons = dict.fromkeys(lost, "did not take weights in time, or died")
        supervisor.confirm(self.version, reasons, kill=silent)
        # With a stream the learners are at work when a runner that comes back wants them.
        if supervisor.starting or self._stores_weights or self.stream is not None:
            self._current_weights()

    def sleep_engines(self) -> None:
        """Let engines that share the learners' GPUs free their memory, until the next `push_weights`."""
        if self.stream is not None:
            return  # they never rest
        with self._runners_to_itself():
            if self._engines_sleep:
                self._sent = None  # taking weights would wake an engine
            self.engine_sleep.begin(self.group, self.settings.timeout_s)

    def _runners_to_itself(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other threads from runners that are called from here."""
        if self.stream is not None:
            return self.stream.runners_to_itself()
        return self.supervisor.lock if self.supervisor is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _waiting_learners(self) -> Iterator[None]:
        """While rollouts are waited for, learners can be asked for weights; ahead of a step they are there already."""
        self._learners_wait = True
        try:
            yield
        finally:
            self._learners_wait = False

    def _make_supervisor(self) -> WorkerSupervisor:
        manager = self.group._worker_manager
        working = set(manager.actors())
        self.group.add_workers(self.settings.spares)  # they start while others begin to work
        return WorkerSupervisor(
            manager.actors(),
            timeout_s=self.settings.timeout_s,
            weights=self._weights_at_hand,
            on_health=lambda number, healthy: manager.set_actor_state(number, healthy=healthy),
            spares=set(manager.actors()) - working,
            engines_sleep=self._engines_sleep,
        )

    def _weights_at_hand(self) -> Weights | None:
        """The weights of the last push, unless the learners would have to be asked for them at work."""
        return self._current_weights() if self._learners_wait else self._sent

    def _current_weights(self) -> Weights:
        """The weights of the last push, through Ray's object store, for a runner that comes back."""
        if self._sent is None:
            self._sent = self.transfer.message(self.learner_group)
        return self._sent

    def _make_stream(self, steps_ahead: int) -> RolloutStream | None:
        """For training whose rollouts go on while the learners work."""
        return RolloutStream(self.supervisor, self.plan) if self.supervisor is not None and steps_ahead else None

    def _require_stream(self) -> RolloutStream:
        if self.stream is None:
            raise RuntimeError("rollouts run while the learners train only with training.max_off_policy_steps above 0")
        return self.stream

    def _supervised(self) -> WorkerSupervisor:
        return cast(WorkerSupervisor, self.supervisor)

    def _rollout_first(
        self, stream: RolloutStream, requests: Sequence[Request], on_progress: OnProgress | None
    ) -> list[Rollout]:
        """Run requests before those of the stream that still wait."""
        ticket = stream.add(self.lengths.longest_first(requests), first=True)
        try:
            rollouts = stream.collect(ticket, on_progress)
        except BaseException:  # an interrupt, or an error after which nobody wants them
            stream.cancel(ticket)
            raise
        self.lengths.observe(rollouts)
        return rollouts

    def _count(self, report: DispatchReport) -> None:
        """Take a report in; an evaluation has no steps to report it in."""
        if self.training:
            runners = 1 if self.supervisor is None else self.supervisor.places
            self._dispatches.add(report, runners, self._grading.added(report.grading))

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
            grading={0: runner.get_grading_counts()},
        )

    def _grading_totals(self) -> dict[int, dict[str, int]]:
        """Counts of the graders of each runner's process, of this run or not; without the silent ones."""
        if self.supervisor is None:
            return {0: cast(LLMEnvRunner, self.group.local_env_runner).get_grading_counts()}
        sent = {runner.handle.get_grading_counts.remote(): runner.number for runner in self.supervisor.ready()}
        answered = ray.wait(list(sent), num_returns=len(sent), timeout=GRADING_COUNTS_TIMEOUT_S)[0] if sent else []
        totals = {}
        for reference in answered:
            with contextlib.suppress(RayError):  # a runner that died has no counts; the next call to it shows that
                totals[sent[reference]] = ray.get(reference)  # waits: it has answered
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
