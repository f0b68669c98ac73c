"""GRPO on RLlib: one training step as a list of stages, each a method that a subclass may override."""

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.algorithms.registry import ALGORITHMS

from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.base import BaseAlgorithm
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.learning_rate import learning_rate
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.metrics import correction_metrics, learner_rates, update_metrics
from algorithms.grpo.plugin_checks import changed_samples, check_rewards, check_terms, checked_advantages, loss_parts
from algorithms.grpo.rewards import length_bonus_reward, overlong_penalty
from algorithms.grpo.samples import deal_auxiliary, measuring_row, minibatches, training_rows
from algorithms.grpo.types import Group, Sample, StepBatch, baseline_groups, to_entry
from algorithms.history.store import ReplayHistory
from algorithms.learner.group import learner_facts, update_learners
from algorithms.learner.update import UpdateStatistics
from algorithms.losses.base import LossSettings
from algorithms.rollout.types import Context, Rollout
from algorithms.utils.rng import RngStream, rng_for

_logger = logging.getLogger(__name__)


class GRPO(BaseAlgorithm):
    """Group relative policy optimization (arXiv 2402.03300) over verifiable environments."""

    config: GRPOConfig

    @classmethod
    def get_default_config(cls) -> GRPOConfig:
        """Return GRPO's configuration with its defaults."""
        return GRPOConfig()

    def training_step(self) -> None:
        """Run one step of Algorithm 1 (arXiv 2601.19620); without mechanisms it is plain GRPO.

        A stage reads and writes the batch: GRPO's own work, then the hook of each enabled mechanism, in order.
        """
        if self.end_unsent_step():
            return
        self.begin_step()
        self.batch = batch = self.run_stage(self.collect_rollouts)
        self.run_stage(self.sleep_engines)
        self.run_stage(self.score_tokens, batch)
        self.run_stage(self.shape_rewards, batch)
        self.run_stage(self.compose_groups, batch)
        self.run_stage(self.compute_advantages, batch)
        self.run_stage(self.update_policy, batch)
        self.run_stage(self.update_history, batch)
        self.run_stage(self.sync_weights, batch)
        self.finish_step(batch)

    # -- The stages. Each default is plain GRPO and the mechanisms. ------------------------------------------------

    def collect_rollouts(self) -> StepBatch:
        """Return verified rollouts of the step's prompts, see `RolloutSource`: `group_size` of each."""
        return self.source.next_batch(self.steps_done)

    def sleep_engines(self) -> None:
        """Let engines that share the learners' GPUs free their memory; `sync_weights` wakes them."""
        self.rollout_workers.sleep_engines()

    def score_tokens(self, batch: StepBatch) -> None:
        """Measure log-probs and entropies of samples that cannot wait for the update's forward pass.

        These are the ones whose values a mechanism or the advantage estimator reads before the update; `update_policy`
        measures the rest.
        """
        self.check_engine(batch)
        readers: tuple[Mechanism | AdvantageEstimator, ...] = (*self.active, self.estimator)
        asked = (sample for group in batch.groups for reader in readers for sample in reader.needs(group))
        needed = list({id(sample): sample for sample in asked}.values())
        self.score_samples(needed, entropy=True)

    def shape_rewards(self, batch: StepBatch) -> None:
        """Reward correctness with a length bonus, and subtract the penalty of overlong responses."""
        for group in batch.rolled_out:
            given = (
                0 if group.prompt.response_prefix is None else len(group.prompt.response_prefix)
            )  # a part of the first turn
            for sample in group.fresh:
                first, *later = sample.rollout.turn_lengths or (0,)
                sample.length_penalty = self.overlong_penalty(max(given + first, *later, 0))
                length = given + sample.rollout.response_length
                sample.reward = self.outcome_reward(sample.rollout, length) + sample.length_penalty
        for mechanism in self.active:
            mechanism.before_rewards(batch)
            for group in batch.groups:
                mechanism.rewards(group)
                check_rewards(mechanism, group)

    def compose_groups(self, batch: StepBatch) -> None:
        """Leave the rollouts of a prompt as they are; mechanisms may add to them."""
        for mechanism in self.active:
            mechanism.compose(batch)

    def compute_advantages(self, batch: StepBatch) -> None:
        """Normalize rewards within each baseline group: Eq. 1 and Eq. 3, or as `training.advantage` names."""
        rewards, groups = self.config.reward_settings, baseline_groups(batch.groups)
        for group in groups:
            if rewards.length_bonus and differs_by_length_alone(group):
                group.std_floor = rewards.length_bonus_std_floor
            for mechanism in self.active:
                mechanism.normalize(group)
        for mechanism in self.active:
            mechanism.before_advantages(batch)
        for group in groups:
            advantages = self._advantages(self.estimator, group)
            for mechanism in self.active:
                advantages = self._advantages(mechanism, group, advantages)
            for sample, advantage in zip(group.samples, advantages, strict=True):
                sample.advantages = advantage if np.ndim(advantage) else float(advantage)

    def _advantages(self, plugin: Any, group: Group, *given: Any) -> Any:
        """Return what a hook `advantages` makes of a group, checked, with the terms that it named."""
        before = loss_parts(group.samples)
        found = plugin.advantages(group, *given)
        changed = changed_samples(group.samples, before)
        check_terms(plugin, "advantages", changed, self.config.training_settings, complete=False)
        return found if given and found is given[0] else checked_advantages(plugin, group, found)

    def update_policy(self, batch: StepBatch) -> None:
        """Take the optimizer steps of each pass over the responses, over all learners."""
        training = self.config.training_settings
        for mechanism in self.active:
            mechanism.before_update(batch)
            check_terms(mechanism, "before_update", [s for group in batch.groups for s in group.samples], training)
        auxiliary = [mechanism.auxiliary(batch) for mechanism in self.active]
        statistics: list[UpdateStatistics] = []
        for number in range(training.passes):
            statistics += self.pass_over(batch, auxiliary, number)
        batch.record |= update_metrics(batch.groups, statistics)
        batch.record |= correction_metrics(batch.groups, LossSettings.of(training))
        facts, peak = learner_facts(self.learner_group), self.config.learners_settings.peak_tflops
        batch.record |= learner_rates(statistics, facts, max(1, self.config.num_learners), peak)
        if warning := self.mismatch_watch.observe(batch.record["policy/logp_mismatch_mean"], float(batch.lag)):
            _logger.warning(warning)

    def pass_over(self, batch: StepBatch, auxiliary: Sequence[Sequence[Sample]], number: int) -> list[UpdateStatistics]:
        """Take one optimizer step for each mini-batch of a pass; return their statistics.

        The first one's forward pass also measures what no scoring pass has: its own samples, and those that are stored
        without being trained on. Later mini-batches are scored before it. Further passes measure nothing.

        Args:
            batch: of the step.
            auxiliary: what each mechanism trains on beside the groups.
            number: of the pass, from 0.
        """
        training = self.config.training_settings
        rng = rng_for(self.seed, batch.step, RngStream.MINIBATCH, number)
        dealt = minibatches(batch.groups, training.minibatches, rng)
        if not dealt and any(auxiliary):
            dealt = [[]]
        self.measure_samples([sample for samples in dealt[1:] for _, sample in samples])
        untrained = self.untrained_samples(batch)
        if not dealt:
            self.score_samples(untrained)
        statistics: list[UpdateStatistics] = []
        done = (batch.step * training.passes + number) * training.minibatches
        rows_of = training_rows(dealt, training, self.config.env_runners_settings.max_response_tokens)
        for place, (samples, rows) in enumerate(zip(dealt, rows_of, strict=True)):
            lr = learning_rate(done + place + 1, training, self.config.schedule_steps)
            measured = [sample for _, sample in samples]
            if place == 0:
                rows += [measuring_row(sample) for sample in untrained]
                measured += untrained
            for own in auxiliary:  # each mechanism's mean is its own
                rows += deal_auxiliary(own, place, len(dealt))
            statistics.append(update_learners(self.learner_group, rows, lr, entropies=self.keeps_entropies))
            skipped = statistics[-1].skipped_steps > 0
            if number == 0 or not skipped:  # the same responses once more say nothing new
                self.skipped_steps.observe(skipped, rows)
            for index, logprobs in statistics[-1].old_logprobs.items():
                sample = measured[index]
                sample.old_logprobs, sample.entropy = logprobs, statistics[-1].entropy[index]
                sample.entropies = statistics[-1].entropies.get(index)
            batch.record["policy/lr"] = lr
        return statistics

    def update_history(self, batch: StepBatch) -> None:
        """Store the step's rollouts, never the replayed ones, if a mechanism reads the history.

        It is written while the engines get their weights; the step ends when both are done.
        """
        for mechanism in self.active:
            mechanism.update_history(batch)
        if self.history is not None:
            self.history.write_in_background(functools.partial(write_history, self.history, batch))

    def sync_weights(self, batch: StepBatch) -> None:
        """Send the workers the new policy; unfinished rollouts continue with it."""
        started = time.perf_counter()
        self.rollout_workers.push_weights()
        batch.record["time/transfer"] = time.perf_counter() - started
        self.finish_history(batch)

    def finish_history(self, batch: StepBatch) -> None:
        """Wait until the history is written, and count what it holds."""
        if self.history is not None:
            batch.record["replay/stored"] = float(len(self.history))
            batch.record["replay/damaged"] = float(self.history.count_damaged())

    def end_unsent_step(self) -> bool:
        """End the last step if all but `sync_weights` of it is done: it is trained on and stored; return whether."""
        if self.stage != "sync_weights":
            return False
        self.run_stage(self.sync_weights, self.batch)
        self.finish_step(self.batch)
        return True

    # -- What the stages are made of. ------------------------------------------------------------------------------

    def outcome_reward(self, rollout: Rollout, length: int) -> float:
        """Return the environment's reward, with the length bonus for a correct response: all turns together count."""
        if not rollout.correct:
            return rollout.reward
        reward = self.config.reward_settings
        bonus = length_bonus_reward(
            True,
            length,
            length_bonus=reward.length_bonus,
            length_bonus_max_tokens=reward.length_bonus_max_tokens,
        )
        return rollout.reward * bonus

    def overlong_penalty(self, length: int) -> float:
        """Return the penalty of a response whose longest turn has this length, as a number that is not positive."""
        reward, limit = self.config.reward_settings, self.config.env_runners_settings.max_response_tokens
        return overlong_penalty(length, limit=limit, share=reward.overlong_share, penalty=reward.overlong_penalty)

    def untrained_samples(self, batch: StepBatch) -> list[Sample]:
        """Return the samples that are stored but not trained on, where they have no log-probs yet."""
        if self.history is None:
            return []
        dropped = [sample for group in batch.dropped if group.is_of_data for sample in group.samples]
        left_out = [sample for group in batch.stored for sample in group.left_out]
        return [sample for sample in (*batch.for_history, *dropped, *left_out) if sample.old_logprobs is None]


ALGORITHMS["GRPO"] = lambda: (GRPO, GRPO.get_default_config())  # for `tune.run("GRPO")`


def write_history(history: ReplayHistory, batch: StepBatch) -> None:
    """Add a step's rollouts and outcomes, and commit them together."""
    fresh = (sample for group in batch.stored for sample in group.fresh)
    for sample in (sample for sample in (*batch.for_history, *fresh) if sample.is_finite):
        history.add(to_entry(sample, batch.step))
    for group in batch.rolled_out:
        if group.prompt.context == Context.PLAIN:
            for sample in group.fresh:
                history.record(group.prompt.uid, sample.rollout.correct, sample.reward)
    history.commit()


def differs_by_length_alone(group: Group) -> bool:
    """Return whether all are correct and paid the same by the environment, so that only the length bonus differs."""
    paid = {sample.rollout.reward for sample in group.samples if not sample.replayed}  # a stored one's has the bonus
    return all(sample.rollout.correct for sample in group.samples) and len(paid) <= 1
