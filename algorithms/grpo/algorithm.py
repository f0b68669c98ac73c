"""GRPO on RLlib: one training step as a list of stages, each a method that a subclass may override."""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.evaluate.evaluation import Evaluation, evaluate_policy
from algorithms.grpo.advantages import ADVANTAGES
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.dynamic_sampling import refilled
from algorithms.grpo.group_requests import group_requests, groups_of
from algorithms.grpo.groups import Group, Prompt, Sample
from algorithms.grpo.learners import learner_facts, score_rows, update_learners
from algorithms.grpo.loss import LossSettings
from algorithms.grpo.mismatch_watch import MismatchWatch
from algorithms.grpo.pipeline import Batch, make_pipeline
from algorithms.grpo.queries import EpochOrder
from algorithms.grpo.rates import learner_rates, time_split
from algorithms.grpo.rewards import length_bonus_reward, overlong_penalty
from algorithms.grpo.runners import RunnerPool
from algorithms.grpo.seeds import Purpose, request_seeds, stream
from algorithms.grpo.skipped_steps import SkippedSteps
from algorithms.grpo.step_metrics import (
    advantage_metrics,
    correction_metrics,
    group_metrics,
    sampling_metrics,
    update_metrics,
)
from algorithms.grpo.training_rows import minibatches, scoring_row, spread, training_rows
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.dispatch import OnProgress
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Request, Rollout, Sampling, Split

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class GRPO(Algorithm):
    """Group relative policy optimisation (arXiv 2402.03300) over verifiable environments.

    After each `train()`, `record` holds the step's metrics by TensorBoard tag, `groups` its groups, `dropped` those
    that dynamic sampling did not train on, and `evaluation` the last evaluation.
    """

    config: GRPOConfig
    metrics: MetricsLogger
    dropped: Sequence[Group] = ()

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        """GRPO with its defaults."""
        return GRPOConfig()

    def setup(self, config: GRPOConfig) -> None:  # type: ignore[override]  # its own class of configuration
        """Build engines and learners through RLlib, then the state of the training loop."""
        if config.env_runners_settings.num_threads and config.num_env_runners == 0:
            torch.set_num_threads(config.env_runners_settings.num_threads)
        super().setup(config)
        module = config.rl_module_settings
        self.tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        self.environments: dict[Split, Any] = {split: make() for split, make in environment_makers(config).items()}
        self.seed: int = config.seed or 0
        self.queries = EpochOrder(self.uids(Split.TRAIN), self.seed)
        self.runners = RunnerPool(self.env_runner_group, self.learner_group, config)
        self.pipeline = make_pipeline(config.training_settings.policy_lag, self.runners)
        settings = config.env_runners_settings
        self.mismatch_watch = MismatchWatch(settings.logp_mismatch_warning, (settings.dtype, module.dtype))
        self.skipped_steps = SkippedSteps(config.training_settings.max_skipped_steps)
        self.last_batch_began = self.queries.position
        self.stage: str | None = None
        self.steps_done = 0
        self.generated_tokens = 0
        self.record: dict[str, Any] = {}
        self.groups: list[Group] = []
        self.evaluation: Evaluation | None = None
        self.evaluated_at: int | None = None
        self.on_evaluation_progress: OnProgress | None = None

    def training_step(self) -> None:
        """One step of Algorithm 1 (arXiv 2601.19620); with the stages of this class it is plain GRPO."""
        # The last step's rollouts go before this step's come: together they would double the memory.
        self.record, self.groups, started = {}, [], time.perf_counter()
        self.began = self.counters()
        queries = self.run_stage(self.select_queries)
        prompts = self.run_stage(self.build_prompts, queries)
        groups = self.run_stage(self.collect_rollouts, prompts)
        self.run_stage(self.rest_engines)
        groups = self.run_stage(self.score_tokens, groups)
        groups = self.run_stage(self.shape_rewards, groups)
        groups = self.run_stage(self.compose_groups, groups)
        groups = self.run_stage(self.compute_advantages, groups)
        self.run_stage(self.update_policy, groups)
        self.run_stage(self.remember, groups)
        self.run_stage(self.sync_weights)
        self.finish_step(groups, time.perf_counter() - started)

    # -- The stages. Each default is plain GRPO. ------------------------------------------------------------------

    def select_queries(self) -> list[str]:
        """The next batch of the epoch's shuffle."""
        self.last_batch_began = self.queries.position
        return self.queries.take(self.config.training_settings.queries_per_step)

    def build_prompts(self, queries: Sequence[str]) -> list[Prompt]:
        """One plain prompt a query."""
        return [Prompt(uid) for uid in queries]

    def collect_rollouts(self, prompts: Sequence[Prompt]) -> list[Group]:
        """`group_size` verified rollouts of each prompt; with dynamic sampling, further queries replace dull groups.

        With `training.policy_lag` they are those of the prompts of the step before, and these are played meanwhile.
        """
        due = self.pipeline.due(self.batch_of(prompts))
        asked, answers = list(due.batch.requests), list(due.rollouts)

        def ask(prompts: Sequence[Prompt], refill: int) -> list[Group]:
            first_group = asked[-1].group + 1 if asked else 0
            requests = self.requests_for(prompts, refill, first_id=len(asked), first_group=first_group)
            rollouts = self.runners.play(requests)
            asked.extend(requests)
            answers.extend(rollouts)
            return groups_of(prompts, rollouts, first_group=first_group)

        collection = refilled(
            groups_of(due.batch.prompts, due.rollouts),
            lambda count, refill: ask([Prompt(uid) for uid in self.queries.take(count)], refill),
            self.is_informative,
            wanted=len(due.batch.prompts),
            max_refills=self.config.training_settings.max_refills,
        )
        self.dropped = collection.dropped
        self.record |= self.runners.metrics(asked, answers) | sampling_metrics(collection)
        self.record["rollout/policy_lag"] = float(due.lag)
        self.pipeline.begin_next(lambda: self.batch_of(self.build_prompts(self.select_queries())))
        return collection.kept

    def rest_engines(self) -> None:
        """Engines that share the learners' GPUs make room; `sync_weights` wakes them."""
        self.runners.rest()

    def score_tokens(self, groups: list[Group]) -> list[Group]:
        """The trainer's log-probs and entropies, of samples for which they cannot wait for the update's forward."""
        self.score_samples(self.samples_to_score(groups), entropy=True)
        return groups

    def shape_rewards(self, groups: list[Group]) -> list[Group]:
        """Correctness with a length bonus, less what an overlong response loses."""
        for sample in (sample for group in [*groups, *self.dropped] for sample in group.samples):
            sample.reward = self.outcome_reward(sample.rollout) + self.overlong_penalty(sample.rollout)
        return groups

    def compose_groups(self, groups: list[Group]) -> list[Group]:
        """The rollouts of a prompt, as they are."""
        return groups

    def compute_advantages(self, groups: list[Group]) -> list[Group]:
        """Eq. 1, rewards normalised within each group; or what `training.advantage` has in its place."""
        advantages_of = ADVANTAGES[self.config.training_settings.advantage]
        for group in groups:
            advantages = advantages_of(np.array([sample.training_reward for sample in group.samples]))
            for sample, advantage in zip(group.samples, advantages, strict=True):
                sample.advantage = float(advantage)
        return groups

    def remember(self, groups: Sequence[Group]) -> None:
        """Keep nothing."""

    def update_policy(self, groups: Sequence[Group]) -> None:
        """One optimizer step for each mini-batch, over all learners; it measures what no scoring pass has."""
        training = self.config.training_settings
        rng = stream(self.seed, self.steps_done, Purpose.MINIBATCH)
        first_step = self.steps_done * training.minibatches + 1
        limit = self.config.env_runners_settings.max_response_tokens
        statistics = []
        for number, samples in enumerate(minibatches(groups, training.minibatches, rng), first_step):
            lr = training.lr * min(1.0, number / max(1, training.warmup_steps))
            rows = training_rows(samples, loss_norm=training.loss_norm, max_response_tokens=limit)
            statistics.append(update_learners(self.learner_group, rows, lr))
            self.skipped_steps.observe(statistics[-1].skipped_steps > 0, rows)
            for index, logprobs in statistics[-1].measured.items():
                sample = samples[index][1]
                sample.behaviour_logprobs = spread(logprobs, sample.rollout.loss_mask)
            self.record["policy/lr"] = lr
        self.record |= update_metrics(groups, statistics) | correction_metrics(groups, LossSettings.of(training))
        facts, peak = learner_facts(self.learner_group), self.config.learners_settings.peak_tflops
        self.record |= learner_rates(statistics, facts, max(1, self.config.num_learners), peak)
        lag = self.record["rollout/policy_lag"]
        if warning := self.mismatch_watch.observe(self.record["policy/logp_mismatch_max"], lag):
            _logger.warning(warning)

    def sync_weights(self) -> None:
        """Give the env runners the new policy, once nothing is being played with the old one."""
        self.pipeline.settle()
        started = time.perf_counter()
        self.runners.push_weights()
        self.record["time/transfer"] = time.perf_counter() - started

    # -- What the stages are made of. ------------------------------------------------------------------------------

    @property
    def prompts_step(self) -> int:
        """The step that prompts are built for: with a policy lag it is not the one that is running."""
        return self.steps_done + self.pipeline.ahead

    def batch_of(self, prompts: Sequence[Prompt]) -> Batch:
        """Prompts and what is to be played for them."""
        return Batch(prompts, self.requests_for(prompts))

    def requests_for(
        self, prompts: Sequence[Prompt], refill: int = 0, *, first_id: int = 0, first_group: int = 0
    ) -> list[Request]:
        """`group_size` requests a prompt, their seeds a function of step and refill (0: the step's own prompts)."""
        count = len(prompts) * self.config.training_settings.group_size
        purpose = Purpose.REFILL if refill else Purpose.ROLLOUT
        step = self.steps_done if refill else self.prompts_step
        seeds = request_seeds(self.seed, step, purpose, count, refill)
        return group_requests(prompts, seeds, self.sampling(), first_id=first_id, first_group=first_group)

    def is_informative(self, group: Group) -> bool:
        """Whether dynamic sampling keeps a group: some of its responses are right and some wrong."""
        return not group.homogeneous

    def outcome_reward(self, rollout: Rollout) -> float:
        """What the environment paid; a correct response earns the length bonus on top."""
        if not rollout.correct:
            return rollout.reward
        reward = self.config.reward_settings
        bonus = length_bonus_reward(True, rollout.response_length, w_len=reward.w_len, l_max=reward.l_max)
        return rollout.reward * bonus

    def overlong_penalty(self, rollout: Rollout) -> float:
        """What a response loses for its length, as a number that is not positive."""
        reward, limit = self.config.reward_settings, self.config.env_runners_settings.max_response_tokens
        return overlong_penalty(
            rollout.response_length, limit=limit, share=reward.overlong_share, penalty=reward.overlong_penalty
        )

    def samples_to_score(self, groups: Sequence[Group]) -> list[Sample]:
        """Samples that are scored before the update: all when it takes several optimizer steps, else none.

        Its only step, or its first, gives the others' behaviour log-probs.
        """
        several = self.config.training_settings.minibatches > 1
        return [sample for group in groups for sample in group.samples] if several else []

    def score_samples(self, samples: Sequence[Sample], *, entropy: bool = False) -> None:
        """Fill in the log-probs (and entropies) of samples under the policy as it stands."""
        results = score_rows(self.learner_group, [scoring_row(sample) for sample in samples], entropy=entropy)
        for sample, (logprobs, entropies) in zip(samples, results, strict=True):
            mask = sample.rollout.loss_mask
            sample.behaviour_logprobs = spread(logprobs, mask)
            sample.entropies = None if entropies is None else spread(entropies, mask)

    def sampling(self) -> Sampling:
        """How training rollouts are sampled."""
        settings = self.config.env_runners_settings
        return Sampling(settings.temperature, settings.top_p, settings.max_response_tokens)

    def uids(self, split: Split) -> list[str]:
        """The ids of an environment's queries."""
        return list(self.environments[split].unwrapped.uids)

    def run_stage(self, stage: Callable[..., T], *arguments: Any) -> T:
        """Run a stage and log its wall time."""
        started = time.perf_counter()
        self.stage = stage.__name__
        result = stage(*arguments)
        self.record[f"time/{stage.__name__}"] = time.perf_counter() - started
        return result

    def finish_step(self, groups: list[Group], seconds: float) -> None:
        """Count, and publish the step's metrics: to `record`, and to RLlib's results for Tune."""
        self.steps_done += 1
        self.stage = None
        self.groups = groups
        played = [*groups, *self.dropped]
        fresh = [sample for group in played for sample in group.samples if not sample.replayed]
        tokens = sum(sample.rollout.response_length for sample in fresh)
        self.generated_tokens += tokens
        self.record |= group_metrics(played) | advantage_metrics(groups) | time_split(self.record)
        self.record |= {
            "throughput/response_tokens_per_s": tokens / seconds,
            "throughput/samples_per_s": len(fresh) / seconds,
            "throughput/generated_tokens": float(self.generated_tokens),
            "time/step": seconds,
            "run/epoch": self.queries.epoch,
        }
        for tag, value in self.record.items():
            if not isinstance(value, str):
                self.metrics.log_value(tuple(tag.split("/")), value, window=1)

    # -- Evaluation, by RLlib's own interval. -----------------------------------------------------------------------

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Held-out evaluation with the training runners; the result is also kept in `evaluation`."""
        self.evaluation = evaluate_policy(
            functools.partial(self.runners.play, on_progress=self.on_evaluation_progress),
            self.uids(Split.EVALUATION),
            self.config.evaluation_settings,
            self.sampling(),
            self.seed,
        )
        self.evaluated_at = self.steps_done
        return self.evaluation.metrics()

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Nothing: RLlib would bring dead runners back with the weights they were made with. `runners` does it."""
        return []

    def cleanup(self) -> None:
        """Give up what is being played, then stop actors as RLlib does."""
        self.runners.close()
        super().cleanup()

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """No second group: the training runners evaluate, with the engines that are there already."""
        return False

    # -- What a checkpoint keeps beside weights and optimizer; see algorithms.script.checkpoint. ----------------------

    @property
    def in_step(self) -> bool:
        """Whether a training step is under way."""
        return self.stage is not None

    @property
    def can_be_saved(self) -> bool:
        """Between steps, and within one as long as nothing has changed that the step would change again."""
        return self.stage not in (self.update_policy.__name__, self.remember.__name__, self.sync_weights.__name__)

    def get_training_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays, and what fits JSON. Random streams need none: they are functions of seed and step.

        In the middle of a step it is the state in which the step began.
        """
        return {}, self.counters() if self.stage is None else self.began

    def counters(self) -> dict[str, Any]:
        """How far the run is, as plain data."""
        return {
            "steps_done": self.steps_done,
            "query_position": self.pipeline.position(before=self.last_batch_began, after=self.queries.position),
            "generated_tokens": self.generated_tokens,
            "weights_version": self.runners.version,
            "runner_restarts": self.runners.restarts,
        }

    def keep_state_in(self, folder: Path) -> None:
        """Keep what grows with the run, and what a failure leaves, in files of this folder."""
        self.skipped_steps.folder = folder

    def start_again(self) -> None:
        """Forget what an earlier process left in those files before its first checkpoint; GRPO left nothing."""

    def forget_before(self, state: dict[str, Any]) -> None:
        """Free what only checkpoints older than this one's state still needed; GRPO keeps nothing for them."""

    def set_training_state(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Go on from there; the learners' weights are in place already."""
        self.steps_done = self._iteration = state["steps_done"]
        self.queries.position = state["query_position"]
        self.generated_tokens = state["generated_tokens"]
        self.runners.restarts = state["runner_restarts"]
        self.runners.push_weights()
