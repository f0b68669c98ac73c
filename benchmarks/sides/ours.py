"""This project's side of the comparison: GRPO with engine, environments and learner in one process."""

import logging
import time
from typing import Any

from benchmarks.sides.process import Baton, Step
from benchmarks.sides.task import Task


def run(task: Task, baton: Baton) -> None:
    """Train until stopped."""
    import ray

    from algorithms.grpo.config import GRPOConfig

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = (
        GRPOConfig()
        .environment(task.environment, env_config=task.environment_options)
        .rl_module(model=task.model, dtype="float32")
        .env_runners(
            engine=task.engine,
            dtype="float32",
            num_env_runners=0,
            max_response_tokens=task.max_response_tokens,
            max_num_seqs=task.samples,
            num_threads=task.threads,
        )
        .learners(num_learners=0, token_budget=task.token_budget, num_threads=task.threads)
        .training(
            lr=task.lr,
            warmup_steps=task.warmup_steps,
            group_size=task.group_size,
            queries_per_step=task.queries,
            importance_cap=0.0,
        )
        .reward(length_bonus=0.0)
        .debugging(seed=task.seed)
    )
    algorithm: Any = config.build_checked()  # unchecked: a model that cannot end an answer would be refused
    try:
        baton.give_back(None)
        while True:
            baton.wait()
            started, cpu_started = time.perf_counter(), time.process_time()
            algorithm.train()
            seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
            rollouts = [sample.rollout for group in algorithm.batch.groups for sample in group.samples]
            if len(rollouts) != task.samples:
                raise RuntimeError(f"{len(rollouts)} samples instead of {task.samples}")
            baton.give_back(
                Step(
                    seconds=seconds,
                    generate_s=algorithm.batch.record["time/collect_rollouts"],
                    reward_s=0.0,
                    samples=len(rollouts),
                    tokens=sum(rollout.response_length for rollout in rollouts),
                    reward=sum(rollout.reward for rollout in rollouts) / len(rollouts),
                    cpu_s=cpu_s,
                    lengths=tuple(rollout.response_length for rollout in rollouts),
                    prompt_tokens=sum(g.samples[0].rollout.prompt_length for g in algorithm.batch.groups),
                    details={"equal": len(rollouts) - len({r.tokens.tobytes() for r in rollouts})},
                )
            )
    finally:
        algorithm.stop()
        ray.shutdown()
