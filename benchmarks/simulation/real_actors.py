"""The control: real LLMEnvRunner actors of RLlib, with episodes, environments and tokenizer, on simulated engines."""

import contextlib
from collections.abc import Iterator
from typing import Any

from algorithms.grpo import algorithm as grpo_algorithm
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.ray_session import start_ray
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.scheduler import DispatchPlan
from benchmarks.simulation.engine import ModelClock, SimulatedEngine
from benchmarks.simulation.scenario import GROUP_SIZE, Scenario
from benchmarks.simulation.step import MeasuredStep


@contextlib.contextmanager
def real_group(scenario: Scenario) -> Iterator[tuple[MeasuredStep, int]]:
    """Yield an algorithm over real actors, and the responses of its step."""
    config = (
        R3GRPOConfig(algo_class=MeasuredStep)
        .environment("benchmarks.simulation.step:ManyQueries-v0", env_config={"count": scenario.queries})
        .rl_module(model="embedded:tiny")
        .env_runners(
            num_env_runners=scenario.engines,
            num_cpus_per_env_runner=0.1,
            max_response_tokens=scenario.lengths.limit,
            max_num_seqs=scenario.slots,
            env_runner_cls=_runner_class(scenario),
        )
        .training(lr=1e-6, group_size=GROUP_SIZE, queries_per_step=scenario.queries, minibatches=1)
        .debugging(seed=1)
    )
    start_ray(config)
    algorithm: Any = config.build_checked()  # unchecked: the responses only say that they are as long
    try:
        plan = DispatchPlan.of(continuous_batching=True, max_num_seqs=scenario.slots)
        algorithm.rollout_workers.stream.dispatch.plan = plan
        algorithm.learner_s = scenario.learner_s / scenario.speed
        grpo_algorithm.update_learners = algorithm.modeled_update
        yield algorithm, scenario.queries * GROUP_SIZE
    finally:
        algorithm.stop()


def _runner_class(scenario: Scenario) -> type[LLMEnvRunner]:
    class SimulatedEnvRunner(LLMEnvRunner):
        """An LLMEnvRunner whose engine has no model."""

        def make_module(self) -> None:
            """Start the simulated engine and load the tokenizer."""
            module = self.config.rl_module_settings
            self.tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
            self.engine = SimulatedEngine(
                scenario.latency, scenario.lengths, max_num_seqs=scenario.slots, clock=ModelClock(scenario.speed)
            )

    return SimulatedEnvRunner
