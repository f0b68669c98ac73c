"""Both sides of the comparison: this project's GRPO in one process, and TRL's GRPOTrainer at its fastest here."""

import logging
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.sides.steps import Baton, Step
from benchmarks.sides.task import Task


def run_ours(task: Task, baton: Baton) -> None:
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


class Rewards:
    """The task's environment as a reward function, with a record of what it saw.

    Args:
        task: whose environment it is.
        stop_tokens: with which a finished response ends.
    """

    __name__ = "rewards"  # TRL's metrics are named after it

    def __init__(self, task: Task, stop_tokens: Sequence[int]) -> None:
        self.environment = task.make_environment()
        self.stop_tokens = set(stop_tokens)
        self.began = self.ended = 0.0
        self.tokens, self.values = 0, [0.0]

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], uid: Sequence[str], **_: Any
    ) -> list[float]:
        """Return one reward per completion."""
        self.began = time.perf_counter()
        self.values = [self._reward(*each) for each in zip(completions, completion_ids, uid, strict=True)]
        self.tokens = sum(map(len, completion_ids))
        self.ended = time.perf_counter()
        return self.values

    def _reward(self, completion: Any, tokens: Sequence[int], uid: str) -> float:
        self.environment.reset(options={"uid": uid})
        _, reward, _, _, info = self.environment.step(completion[0]["content"])
        # As on the other side: a box in an unfinished response does not count.
        return 0.0 if info["correct"] and tokens[-1] not in self.stop_tokens else reward


def run_trl(task: Task, baton: Baton) -> None:
    """Train until stopped."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
    from trl import GRPOConfig, GRPOTrainer

    from algorithms.models.tokenizer import stop_token_ids
    from r3env import chat

    logging.set_verbosity_error()
    tokenizer: Any = AutoTokenizer.from_pretrained(task.model)
    stop_tokens = stop_token_ids(tokenizer, task.model)
    environment = task.make_environment()
    prompts = [[{"role": "user", "content": environment.prompt(environment.query(u))}] for u in environment.uids]
    for prompt in prompts:
        if tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"] != chat.first_turn(
            tokenizer, prompt
        ):
            raise RuntimeError(f"the two sides would not ask the same: {prompt}")
    rewards: Any = Rewards(task, stop_tokens)  # TRL's annotation wants what no plain list is
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32),
            reward_funcs=rewards,
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=task.micro_batch,
                gradient_accumulation_steps=task.samples // task.micro_batch,
                num_generations=task.group_size,
                max_completion_length=task.max_response_tokens,
                learning_rate=task.lr,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=task.warmup_steps,
                max_steps=1_000_000,
                weight_decay=0.0,
                max_grad_norm=1.0,
                beta=0.0,
                epsilon=0.2,
                epsilon_high=0.28,
                loss_type="dapo",
                scale_rewards="group",
                temperature=1.0,
                seed=task.seed,
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts, "uid": environment.uids}),
            processing_class=tokenizer,
            callbacks=[_turns(baton, rewards, task)],
        )
        baton.give_back(None)
        trainer.train()


def _turns(baton: Baton, rewards: Any, task: Task) -> Any:
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        """Takes a step when it is this side's turn. A step begins before its responses are sampled."""

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            baton.wait()
            self.started, self.cpu_started = time.perf_counter(), time.process_time()

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            ended, cpu_s = time.perf_counter(), time.process_time() - self.cpu_started
            if len(rewards.values) != task.samples:
                raise RuntimeError(f"{len(rewards.values)} samples instead of {task.samples}")
            baton.give_back(
                Step(
                    seconds=ended - self.started,
                    generate_s=rewards.began - self.started,
                    reward_s=rewards.ended - rewards.began,
                    samples=len(rewards.values),
                    tokens=rewards.tokens,
                    reward=sum(rewards.values) / len(rewards.values),
                    cpu_s=cpu_s,
                )
            )

    return Turns()
