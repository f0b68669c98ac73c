"""The real training step of R³ over simulated runners and a learner that only takes its time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import gymnasium
import ray
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from algorithms.config.placement import TransferKind
from algorithms.grpo import algorithm as grpo_algorithm
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.types import Sample
from algorithms.learner.update import UpdateStatistics
from algorithms.preflight.ray_session import start_ray
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout import workers as workers_module
from algorithms.rollout.scheduler import DispatchPlan, ExpectedLengths
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Request
from algorithms.rollout.workers import RolloutWorkers
from benchmarks.simulation.runner import RunnerSpec, SimulatedHost
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class ManyQueries(VerifiableEnv):
    """As many queries as are wanted; simulated runners never run them."""

    def __init__(self, count: int = 1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.count = count

    def load_queries(self) -> list[Query]:
        """Return numbered queries."""
        return [Query(f"query-{number}", str(number), str(number)) for number in range(self.count)]

    def verify(self, query: Query, response: str) -> Verdict:
        """Return a correct verdict."""
        return Verdict(True, Reason.EQUAL)


gymnasium.register("ManyQueries-v0", ManyQueries)


@dataclass(frozen=True)
class _Call:
    """One method of one runner, with the `remote` of a Ray actor's method."""

    host: Any
    method: str
    index: int

    def remote(self, *arguments: Any) -> Any:
        """Call it; returns Ray's reference to the answer."""
        return getattr(self.host, self.method).remote(self.index, *arguments)


class SimulatedHandle:
    """Stands in for the handle of a runner's actor."""

    def __init__(self, host: Any, index: int) -> None:
        self.advance, self.set_state = _Call(host, "advance", index), _Call(host, "set_state", index)
        self.get_pid = _Call(host, "get_pid", index)
        self.restart, self.get_grading_counts = _Call(host, "restart", index), _Call(host, "get_grading_counts", index)


class SimulatedGroup:
    """Stands in for RLlib's group of env runners.

    Args:
        specs: one for each runner.
        per_host: runners in a process.
        speed: modeled seconds in a real one.
    """

    def __init__(self, specs: Sequence[RunnerSpec], *, per_host: int, speed: float) -> None:
        actor = ray.remote(num_cpus=0)(SimulatedHost)
        self.hosts: list[Any] = [
            actor.options(max_concurrency=8 * per_host).remote(specs[start : start + per_host], speed)
            for start in range(0, len(specs), per_host)
        ]
        self.handles: Mapping[int, SimulatedHandle] = {
            number + 1: SimulatedHandle(self.hosts[number // per_host], number % per_host)
            for number in range(len(specs))
        }
        self._worker_manager = self

    def num_remote_env_runners(self) -> int:
        """Return the number of runners."""
        return len(self.handles)

    def actors(self) -> Mapping[int, SimulatedHandle]:
        """Return the handles by number."""
        return self.handles

    def set_actor_state(self, number: int, healthy: bool) -> None:
        """Do nothing: it is never called."""

    def healthy_env_runner_ids(self) -> list[int]:
        """Return all: a dead one is found by its unanswered calls."""
        return list(self.handles)

    def foreach_env_runner(self, *arguments: Any, **options: Any) -> list[Any]:
        """Return no counts: there are no graders."""
        return []

    def arm(self) -> None:
        """Start the clock of the runners that are to die."""
        ray.get([host.arm.remote() for host in self.hosts])

    def set_speed(self, speed: float) -> None:
        """Change the speed of modeled time."""
        ray.get([host.set_speed.remote(speed) for host in self.hosts])

    def usage(self) -> dict[str, float]:
        """Return modeled time of the first host, and sums over all engines, see `Usage`."""
        answers = ray.get([host.usage.remote() for host in self.hosts])
        total = {name: sum(answer[name] for answer in answers) for name in answers[0]}
        return total | {"now": answers[0]["now"]}

    def close(self) -> None:
        """End the processes."""
        for host in self.hosts:
            ray.kill(host)


class VersionOnly:
    """A transfer of weights that have a version and no bytes."""

    kind = TransferKind.OBJECT_STORE

    def __init__(self) -> None:
        self.version = 0

    def push(self, learner_group: Any, runner_group: SimulatedGroup, timeout_s: float, only: Any = None) -> int:
        """Send all runners the next version."""
        self.version += 1
        references = [handle.set_state.remote(self.message(None)[1]) for handle in runner_group.handles.values()]
        ray.get(references, timeout=timeout_s)
        return self.version

    def publish(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """Return the next version, for runners that load it on their own."""
        self.version += 1
        return self.message(learner_group)

    def message(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """Return the message for a runner that restarts."""
        return self.version, {WEIGHTS_SEQ_NO: self.version}


class InOrder(ExpectedLengths):
    """Schedules without lengths: requests start in the order of their prompts."""

    def longest_first(self, requests: Sequence[Request]) -> list[Request]:
        """Return them in the order given."""
        return list(requests)


class SimulatedWorkers(RolloutWorkers):
    """The real workers; only a dead runner is replaced in its host instead of killed."""

    def _make_supervisor(self) -> WorkerSupervisor:
        return WorkerSupervisor(
            self.group._worker_manager.actors(),
            timeout_s=self.settings.timeout_s,
            weights=self._weights_at_hand,
            kill=lambda handle: handle.restart.remote(),
        )


class MeasuredStep(R3GRPO):
    """R³ whose learner sleeps as long as a real one would take, and whose stages measure the driver's CPU time."""

    learner_s = 0.0

    def setup(self, config: GRPOConfig) -> None:  # type: ignore[override]  # see BaseAlgorithm
        """Build the algorithm."""
        self.cpu_seconds: dict[str, float] = {}
        super().setup(config)

    def simulate(
        self, group: SimulatedGroup, *, max_num_seqs: int, learner_s: float, longest_first: bool, lag: int
    ) -> None:
        """Replace the engine and the learner; weights have a version only."""
        with mock.patch.object(workers_module, "choose_transfer", lambda config: VersionOnly()):
            self.rollout_workers = SimulatedWorkers(cast(Any, group), self.learner_group, self.config)
        stream = self.rollout_workers.stream
        stream.dispatch.plan = DispatchPlan.of(continuous_batching=True, max_num_seqs=max_num_seqs)
        stream.ahead = lag > 0
        if not longest_first:
            self.rollout_workers.lengths = InOrder()
        training = self.config.training_settings.model_copy(update={"max_off_policy_steps": lag})
        self.source = RolloutSource(
            self.rollout_workers, self.sampler, self.active, training, self.sampling(), self.seed
        )
        self.learner_s = learner_s
        grpo_algorithm.update_learners = self.modeled_update

    def run_stage(self, stage: Any, *arguments: Any) -> Any:
        """Run a stage, and log CPU seconds beside wall seconds."""
        started = time.process_time()
        result = super().run_stage(stage, *arguments)
        self.cpu_seconds[stage.__name__] = time.process_time() - started
        return result

    def score_samples(self, samples: Sequence[Sample], *, entropy: bool = False) -> None:
        """Fill in what the learners would return, without the transfers."""
        for sample in samples:
            sample.old_logprobs = sample.rollout.sampling_logprobs.copy()
            if entropy:
                sample.entropies = -sample.rollout.sampling_logprobs
                sample.entropy = float(sample.entropies.sum())

    def modeled_update(
        self, learner_group: Any, rows: Sequence[Any], lr: float, *, entropies: bool = False
    ) -> UpdateStatistics:
        """Replace `update_learners`: take its time, and return copies of what the engines measured."""
        time.sleep(self.learner_s)
        old_logprobs = {
            index: row.sampling_logprobs.copy() for index, row in enumerate(rows) if row.sampling_logprobs is not None
        }
        tokens = float(sum(len(row.tokens) for row in rows))
        statistics = UpdateStatistics(tokens=tokens, old_logprobs=old_logprobs)
        for index, logprobs in old_logprobs.items():
            part = UpdateStatistics(entropies={index: -logprobs})
            part.sum_entropies(keep=entropies)
            statistics.entropies |= part.entropies
            statistics.entropy |= part.entropy
        return statistics


def build(*, queries_per_step: int, group_size: int, max_tokens: int, timeout_s: float) -> MeasuredStep:
    """Build the algorithm, with a local engine that is never used."""
    config = (
        R3GRPOConfig(algo_class=MeasuredStep)
        .environment("benchmarks.simulation.step:ManyQueries-v0", env_config={"count": queries_per_step})
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=max_tokens, timeout_s=timeout_s)
        .training(
            lr=1e-6,
            group_size=group_size,
            queries_per_step=queries_per_step,
            minibatches=1,
        )
        .debugging(seed=1)
    )
    start_ray(config)
    algorithm = config.build_checked()  # unchecked: the responses only say that they are as long
    if not isinstance(algorithm, MeasuredStep):
        raise TypeError(f"expected a MeasuredStep, got {type(algorithm).__name__}")
    return algorithm
