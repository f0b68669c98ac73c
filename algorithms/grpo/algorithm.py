"""GRPO on RLlib: one training step as a list of stages, each a method that a subclass may override."""

import logging
import time
from collections.abc import Sequence

import numpy as np

from algorithms.grpo.advantages import ADVANTAGES
from algorithms.grpo.base import StagedAlgorithm
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.metrics import (
    correction_metrics,
    learner_rates,
    sampling_metrics,
    update_metrics,
)
from algorithms.grpo.rewards import length_bonus_reward, overlong_penalty
from algorithms.grpo.rollout_source import Batch, collect_groups, make_requests, refilled
from algorithms.grpo.training_samples import minibatches, scatter_to_sequence, scoring_row, training_rows
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.learner.group import learner_facts, score_rows, update_learners
from algorithms.learner.loss import LossSettings
from algorithms.rollout.types import Request, Rollout, refuse_if_all_failed
from algorithms.utils.rng import RngStream, request_seeds, rng_for

_logger = logging.getLogger(__name__)


class GRPO(StagedAlgorithm):
    """Group relative policy optimization (arXiv 2402.03300) over verifiable environments."""

    config: GRPOConfig

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        """GRPO with its defaults."""
        return GRPOConfig()

    def training_step(self) -> None:
        """One step of Algorithm 1 (arXiv 2601.19620); with the stages of this class it is plain GRPO."""
        # The last step's rollouts go before this step's come: together they would double the memory.
        self.record, self.groups, started = {}, [], time.perf_counter()
        self.began = self.counters()
        queries = self.run_stage(self.select_queries)
        prompts = self.run_stage(self.build_prompts, queries)
        groups = self.run_stage(self.collect_rollouts, prompts)
        self.run_stage(self.sleep_engines)
        groups = self.run_stage(self.score_tokens, groups)
        groups = self.run_stage(self.shape_rewards, groups)
        groups = self.run_stage(self.compose_groups, groups)
        groups = self.run_stage(self.compute_advantages, groups)
        self.run_stage(self.update_policy, groups)
        self.run_stage(self.update_history, groups)
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

        With `training.max_off_policy_steps` they are those of the prompts of the step before, and these are played meanwhile.

        Raises:
            EveryEpisodeFailed: the environment failed in all of them.
        """
        due = self.pipeline.due(self.batch_of(prompts))
        asked, answers = list(due.batch.requests), list(due.rollouts)

        def ask(prompts: Sequence[Prompt], refill: int) -> list[Group]:
            first_group = asked[-1].group + 1 if asked else 0
            requests = self.requests_for(prompts, refill, first_id=len(asked), first_group=first_group)
            rollouts = self.runners.rollout(requests)
            asked.extend(requests)
            answers.extend(rollouts)
            return collect_groups(prompts, rollouts, first_group=first_group)

        collection = refilled(
            collect_groups(due.batch.prompts, due.rollouts),
            lambda count, refill: ask([Prompt(uid) for uid in self.queries.take(count)], refill),
            self.is_informative,
            wanted=len(due.batch.prompts),
            max_resample_rounds=self.config.training_settings.max_resample_rounds,
        )
        refuse_if_all_failed(answers)
        self.dropped = collection.dropped
        self.record |= self.runners.metrics(asked, answers) | sampling_metrics(collection)
        self.record["rollout/policy_lag"] = float(due.lag)
        self.pipeline.begin_next(lambda: self.batch_of(self.build_prompts(self.select_queries())))
        return collection.kept

    def sleep_engines(self) -> None:
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
        """Eq. 1, rewards normalized within each group; or what `training.advantage` has in its place."""
        advantages_of = ADVANTAGES[self.config.training_settings.advantage]
        for group in groups:
            advantages = advantages_of(np.array([sample.training_reward for sample in group.samples]))
            for sample, advantage in zip(group.samples, advantages, strict=True):
                sample.advantage = float(advantage)
        return groups

    def update_history(self, groups: Sequence[Group]) -> None:
        """Keep nothing."""

    def update_policy(self, groups: Sequence[Group]) -> None:
        """One optimizer step for each mini-batch, over all learners; it measures what no scoring pass has."""
        training = self.config.training_settings
        rng = rng_for(self.seed, self.steps_done, RngStream.MINIBATCH)
        first_step = self.steps_done * training.minibatches + 1
        limit = self.config.env_runners_settings.max_response_tokens
        statistics = []
        for number, samples in enumerate(minibatches(groups, training.minibatches, rng), first_step):
            lr = training.lr * min(1.0, number / max(1, training.warmup_steps))
            rows = training_rows(samples, loss_aggregation=training.loss_aggregation, max_response_tokens=limit)
            statistics.append(update_learners(self.learner_group, rows, lr))
            self.skipped_steps.observe(statistics[-1].skipped_steps > 0, rows)
            for index, logprobs in statistics[-1].measured.items():
                sample = samples[index][1]
                sample.old_logprobs = scatter_to_sequence(logprobs, sample.rollout.loss_mask)
                sample.entropies = scatter_to_sequence(statistics[-1].entropies[index], sample.rollout.loss_mask)
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
        purpose = RngStream.REFILL if refill else RngStream.ROLLOUT
        step = self.steps_done if refill else self.prompts_step
        seeds = request_seeds(self.seed, step, purpose, count, refill)
        return make_requests(prompts, seeds, self.sampling(), first_id=first_id, first_group=first_group)

    def is_informative(self, group: Group) -> bool:
        """Whether dynamic sampling keeps a group: some of its responses are right and some wrong."""
        return not group.homogeneous

    def outcome_reward(self, rollout: Rollout) -> float:
        """What the environment paid; a correct response earns the length bonus on top."""
        if not rollout.correct:
            return rollout.reward
        reward = self.config.reward_settings
        bonus = length_bonus_reward(
            True,
            rollout.response_length,
            length_bonus=reward.length_bonus,
            length_bonus_max_tokens=reward.length_bonus_max_tokens,
        )
        return rollout.reward * bonus

    def overlong_penalty(self, rollout: Rollout) -> float:
        """What a response loses for its length, as a number that is not positive."""
        reward, limit = self.config.reward_settings, self.config.env_runners_settings.max_response_tokens
        return overlong_penalty(
            rollout.response_length, limit=limit, share=reward.overlong_share, penalty=reward.overlong_penalty
        )

    def samples_to_score(self, groups: Sequence[Group]) -> list[Sample]:
        """Samples that are scored before the update: all when it takes several optimizer steps, else none.

        Its only step, or its first, gives the others' behavior log-probs.
        """
        several = self.config.training_settings.minibatches > 1
        return [sample for group in groups for sample in group.samples] if several else []

    def score_samples(self, samples: Sequence[Sample], *, entropy: bool = False) -> None:
        """Fill in the log-probs (and entropies) of samples under the policy as it stands."""
        results = score_rows(self.learner_group, [scoring_row(sample) for sample in samples], entropy=entropy)
        for sample, (logprobs, entropies) in zip(samples, results, strict=True):
            mask = sample.rollout.loss_mask
            sample.old_logprobs = scatter_to_sequence(logprobs, mask)
            sample.entropies = None if entropies is None else scatter_to_sequence(entropies, mask)
