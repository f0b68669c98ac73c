"""The pool of env runners: it rolls out requests, in training with weights that are verified to be the learners'."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import Any, cast

import ray
import torch
from ray.exceptions import RayError
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.base import BaseConfig
from algorithms.config.placement import TransferKind, engine_sleeps, transfer_kind
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.local_pool import LocalPool
from algorithms.rollout.lost_runners import Weights
from algorithms.rollout.metrics import DispatchMetrics, GradingCounts, completion_metrics
from algorithms.rollout.reward_actors import RewardActors
from algorithms.rollout.scheduler import DispatchPlan, ExpectedLengths
from algorithms.rollout.stream import RolloutStream, Ticket
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import OnProgress, Request, Rollout, Split
from algorithms.rollout.weight_sync.choice import choose_transfer
from algorithms.rollout.weight_sync.object_store import AsLoaded
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights, RunnerCalls, WeightTransfer
from algorithms.utils.process import native_stderr_held_back
from algorithms.utils.start_watch import StartWatch
from algorithms.utils.starting import ShownStart


class RolloutWorkers:
    """Env runners that hold the current policy: remote actors, or one in this process.

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
        self.engines_sleep = training and engine_sleeps(config)
        self.version = -1
        self._sent: Weights | None = None
        self._learners_wait = self._asleep = False
        self._stores_weights = not training or transfer_kind(config) is TransferKind.OBJECT_STORE
        self.local = not runner_group.num_remote_env_runners()
        self.supervisor = LocalPool(cast(Any, runner_group.local_env_runner)) if self.local else self._make_supervisor()
        self.lengths = ExpectedLengths()
        self._restarts_before = 0
        self._hung_reported = 0
        ahead = training and cast(Any, config).training_settings.max_off_policy_steps > 0
        self.stream = RolloutStream(self.supervisor, self._plan(), ahead=ahead)
        self._dispatches, self._grading = DispatchMetrics(), GradingCounts()
        self._callback_metrics: dict[Split, list[dict[str, Any]]] = {split: [] for split in Split}
        if training:
            self._grading.added(self.supervisor.grading_totals())
        self.push_weights()
        if not self.local:
            self.stream.start_thread()

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Run every request, before those that run ahead; return the rollouts sorted by request id.

        Args:
            requests: what to run.
            on_progress: called now and then with how many of how many are done.

        Raises:
            NoEnvRunnerLeft: no runner answers, and none has come back in time.
            StaleWeights: a runner keeps sampling with other weights than were pushed last.
        """
        if self._asleep:  # a step failed before it could wake them
            self.push_weights()
        if self.local:
            self.stream.dispatch.plan = self._plan(in_parts=on_progress is not None)
        ticket = self.stream.add(self._in_order(requests), first=True)
        try:
            return self._collect(ticket, on_progress)
        except BaseException:  # an interrupt, or an error after which nobody wants them
            self.stream.cancel(ticket)
            raise

    def start(self, requests: Sequence[Request]) -> Ticket:
        """Begin to roll out, with the weights as they are and those that come; needs `training.max_off_policy_steps`.

        Returns:
            What `finish` or `abandon` takes.
        """
        if not self.stream.ahead:
            raise RuntimeError("rollouts run while the learners train only with training.max_off_policy_steps above 0")
        return self.stream.add(self._in_order(requests))

    def finish(self, ticket: Ticket) -> list[Rollout]:
        """Wait for the rollouts that `start` began; raises what `rollout` raises."""
        return self._collect(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Abandon the rollouts that `start` began."""
        self.stream.cancel(ticket)

    def _collect(self, ticket: Ticket, on_progress: OnProgress | None = None) -> list[Rollout]:
        if self.stream.ahead:  # learners work, and their weights are at hand
            rollouts = self.stream.collect(ticket, on_progress)
        else:
            with self.stream.runners_to_itself():
                self._learners_wait = True
                try:
                    rollouts = self.stream.collect(ticket, on_progress)
                finally:
                    self._learners_wait = False
        self.lengths.observe(rollouts)
        return rollouts

    def _in_order(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Longest first; an engine in this process takes them as they are, in batches that do not depend on lengths."""
        return requests if self.local else self.lengths.longest_first(requests)

    def _plan(self, *, in_parts: bool = True) -> DispatchPlan:
        """Return how to cut work for the engines; `in_parts` lets a batch engine in this process report progress."""
        # A batch of the embedded engine cannot be added to while it decodes.
        most, continuous_batching = self.settings.max_num_seqs, self.settings.engine != "transformers"
        if not self.local or (self.training and in_parts and not continuous_batching):
            return DispatchPlan.of(continuous_batching=continuous_batching, max_num_seqs=most)
        return DispatchPlan(most, sys.maxsize if self.training or continuous_batching else most, calls=1, pieces=1)

    def close(self) -> None:
        """Abandon unfinished rollouts."""
        self.supervisor.closed = True
        self.stream.close()

    @property
    def restarts(self) -> int:
        """The number of runners that were lost and have come back, in the whole run."""
        return self._restarts_before + self.supervisor.counts.restarts

    @restarts.setter
    def restarts(self, total: int) -> None:
        self._restarts_before = total - self.supervisor.counts.restarts

    def metrics(self, requests: Sequence[Request], rollouts: Sequence[Rollout]) -> dict[str, float | str]:
        """Report requests, results and errors since the last call."""
        self._count_rollouts()
        hung = self.supervisor.counts.hung
        new_hung, self._hung_reported = hung - self._hung_reported, hung
        return {
            **completion_metrics(requests, rollouts),
            "rollout/runner_restarts": float(self.restarts),
            "rollout/runner_recovery_s": max(self.supervisor.take_recoveries(), default=0.0),
            "rollout/hung": float(new_hung),
            **self._dispatches.take(),
            "rollout/engine": self.settings.engine,
            "rollout/weight_transfer": str(self.weight_transfer),
        }

    @property
    def weight_transfer(self) -> TransferKind:
        """How the weights travel, after falling back from whatever could not be set up."""
        return self.transfer.kind

    def take_callback_metrics(self, split: Split) -> list[dict[str, Any]]:
        """Return what callbacks in runners have logged since the last call, for `MetricsLogger.aggregate`."""
        self._count_rollouts()
        taken, self._callback_metrics[split] = self._callback_metrics[split], []
        return taken

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the block's rollouts out of the next `metrics`: an evaluation is no part of a step."""
        self._count_rollouts()
        with self._dispatches.forgotten():
            try:
                yield
            finally:
                self._count_rollouts()

    def push_weights(self) -> None:
        """Send the learners' weights to every runner, and note their version.

        A runner that does not take them in time is lost, and gets them when it has been replaced. What runs meanwhile
        goes on with the new weights. Where runners can fetch these by themselves, nobody waits until they have.
        """
        self._asleep = False
        with self.stream.runners_to_itself():
            self._keep_those_that_answer()
            first = self.version < 0  # an engine that cannot take weights at all is told of at once
            self._sent = None  # the object store need not hold the old ones beside the new ones
            if self.stream.ahead and not first and (message := self.transfer.publish(self.learner_group)):
                self._sent, self.version = message, message[0]
                self.supervisor.send_weights(*message)
                return
            started = time.monotonic()
            try:
                self.version = self.transfer.push(self.learner_group, self.group, self.settings.timeout_s)
            except NoRunnerTookWeights:  # they are replaced when there is something to roll out
                self.version = self._current_weights()[0]
            self._confirm_push(silent=time.monotonic() - started >= self.settings.timeout_s)

    def _keep_those_that_answer(self) -> None:
        """Ping the runners that RLlib takes for dead after a failed call of a user's; who answers takes weights."""
        healthy = set() if self.local else set(self.group.healthy_env_runner_ids())
        doubtful = [] if self.local else [one for one in self.supervisor.up() if one.number not in healthy]
        pings = {runner.handle.get_pid.remote(): runner for runner in doubtful}
        answered = ray.wait(list(pings), num_returns=len(pings), timeout=self.settings.timeout_s)[0] if pings else []
        for ping in answered:
            with contextlib.suppress(RayError):  # it is dead indeed, and replaced after the push
                if pings[ping].pid in (None, ray.get(ping)):  # waits: it has answered
                    self.group._worker_manager.set_actor_state(pings[ping].number, healthy=True)

    def _confirm_push(self, *, silent: bool) -> None:
        """Replace the runners that did not take the weights, and keep these for those that start."""
        supervisor = self.supervisor
        if self.local:
            supervisor.confirm(self.version, {})
            return
        healthy = set(self.group.healthy_env_runner_ids())
        lost = [runner.number for runner in supervisor.up() if runner.number not in healthy]
        supervisor.counts.hung += len(lost) if silent else 0
        reasons = dict.fromkeys(lost, "did not take weights in time, or died")
        supervisor.confirm(self.version, reasons, kill=silent)
        # Ahead of a step the learners are at work when a runner that comes back wants them.
        if supervisor.starting or self._stores_weights or self.stream.ahead:
            self._current_weights()

    def sleep_engines(self) -> None:
        """Let engines that share the learners' GPUs free their memory, until the next `push_weights`."""
        if self.stream.ahead:
            return  # they never rest
        with self.stream.runners_to_itself():
            if self.engines_sleep:
                self._sent = None  # taking weights would wake an engine
                self._asleep = True
                # One that does not answer is marked unhealthy, and replaced when there is something to roll out.
                with contextlib.suppress(NoRunnerTookWeights):
                    RunnerCalls(self.group, self.settings.timeout_s)(methodcaller("sleep_engine"))

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
            engines_sleep=self.engines_sleep,
        )

    def _weights_at_hand(self) -> Weights | None:
        """Return the weights of the last push, unless the learners would have to be asked for them at work."""
        return self._current_weights() if self._learners_wait else self._sent

    def _current_weights(self) -> Weights:
        """Return the weights of the last push, through Ray's object store, for a runner that comes back."""
        if self._sent is None:
            self._sent = self.transfer.message(self.learner_group)
        return self._sent

    def _count_rollouts(self) -> None:
        """Take in what has happened since the last call."""
        report = self.stream.take_report()
        self._dispatches.add(report, self.supervisor.places, self._grading.added(report.grading))
        for by_split in report.metrics:
            for split, logged in by_split.items():
                self._callback_metrics[split].append(logged)


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
    if remote or config.env_runners_settings.reward_actor.replicas:
        start_ray(config)
    with native_stderr_held_back() as seen, ShownStart(stream=seen), StartWatch():
        rewards = RewardActors(config)
        group = EnvRunnerGroup(config=config, local_env_runner=False) if remote else cast(Any, _LocalGroup(config))
        workers = RolloutWorkers(group, None, config)
    try:
        yield workers
    finally:
        workers.close()
        group.stop()
        rewards.close()


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
    return config.copy().apply({"env_runners": {"num_gpus_per_env_runner": runners.tensor_parallel_size}})
