"""Inference engines that only answer: no learner, no training; in this process or in Ray actors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.scheduler import DispatchPlan, OnProgress, dispatch
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Request, Rollout
from algorithms.rollout.work_order import ExpectedLengths
from algorithms.utils.process import native_stderr_held_back


class LocalPlayer:
    """One engine in this process."""

    def __init__(self, config: Any) -> None:
        self.runner = LLMEnvRunner(config=config, worker_index=0)
        self.slots = config.env_runners_settings.max_num_seqs

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Play every request, with an engine of batches one at a time; rollouts come back sorted by request id."""
        return self.runner.rollout(requests, on_progress, self.slots)

    def close(self) -> None:
        """Free the engine."""
        self.runner.stop()


class RemotePlayers:
    """Env runner actors, driven as in training: kept filled, replaced when they die."""

    def __init__(self, config: Any) -> None:
        from ray.rllib.env.env_runner_group import EnvRunnerGroup
        from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

        settings = config.env_runners_settings
        self.group = EnvRunnerGroup(config=config, local_env_runner=False)
        manager = self.group._worker_manager
        self.supervisor = WorkerSupervisor(
            manager.actors(),
            timeout_s=settings.timeout_s,
            # An engine that comes back has read the model again; it only has to say so.
            weights=lambda: (0, {WEIGHTS_SEQ_NO: 0}),
            on_health=lambda number, healthy: manager.set_actor_state(number, healthy=healthy),
        )
        self.supervisor.confirm(0, {})
        self.plan = DispatchPlan.of(
            continuous_batching=settings.engine != "transformers", max_num_seqs=settings.max_num_seqs
        )
        self.lengths = ExpectedLengths()

    def rollout(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Play every request; rollouts come back sorted by request id."""
        report = dispatch(self.supervisor, self.lengths.longest_first(requests), self.plan, on_progress)
        self.lengths.observe(report.rollouts)
        return report.rollouts

    def close(self) -> None:
        """End the actors."""
        self.supervisor.closed = True
        self.group.stop()


def _with_the_gpu(config: Any) -> Any:
    """An engine in this process takes the GPU that there is, whether or not one was asked for."""
    import torch

    runners = config.env_runners_settings
    if runners.num_env_runners or runners.num_gpus_per_env_runner or not torch.cuda.is_available():
        return config
    return config.copy().apply({"env_runners": {"num_gpus_per_env_runner": runners.tensor_parallel_size}})


@contextmanager
def players(config: Any) -> Iterator[LocalPlayer | RemotePlayers]:
    """Engines for a configuration, freed at the end: actors where `env_runners.num_env_runners` is above 0."""
    config = _with_the_gpu(config)
    config.validate()
    remote = config.env_runners_settings.num_env_runners > 0
    if remote:
        from algorithms.preflight.ray_session import start_ray

        start_ray(config)
    with native_stderr_held_back():
        player = RemotePlayers(config) if remote else LocalPlayer(config)
    try:
        yield player
    finally:
        player.close()
