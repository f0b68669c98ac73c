"""R³-GRPO (arXiv 2601.19620): replay, reflection and ranking as overridden stages of GRPO."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.grpo.advantages import ADVANTAGES, group_advantages
from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.history.entry import ReplayEntry
from algorithms.history.store import FILE_NAME, ReplayHistory
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.memory import is_finite, strip_reflection, to_entry, to_sample
from algorithms.r3_grpo.ranking import RewardOrderWatch, TruncationWatch, ranked_rewards
from algorithms.r3_grpo.reflection import ReflectionGain, is_hard, share_limit
from algorithms.rollout.attempts import AttemptTruncator, attempt_of, context_of
from algorithms.rollout.types import Context, Split
from algorithms.utils.rng import RngStream, rng_for

_logger = logging.getLogger(__name__)


def _history(config: R3GRPOConfig, path: Path | None) -> ReplayHistory:
    window = config.reflection_settings.history_window
    return ReplayHistory(
        capacity=config.replay_settings.capacity,
        dedupe=config.replay_settings.dedupe,
        history_window=4 * config.training_settings.group_size if window is None else window,
        path=path,
    )


class R3GRPO(GRPO):
    """GRPO that does not go blind when a whole group fails or a whole group passes.

    Its three mechanisms have a switch each; with all of them off every stage is GRPO's own, bit for bit.
    """

    config: R3GRPOConfig
    distilled: Sequence[Sample] = ()

    @classmethod
    def get_default_config(cls) -> R3GRPOConfig:
        """R³-GRPO with its defaults."""
        return R3GRPOConfig()

    def setup(self, config: R3GRPOConfig) -> None:  # type: ignore[override]  # its own class of configuration
        """Add the history that replay and reflection read."""
        super().setup(config)
        self.history = _history(config, None)
        self.payoff = ReflectionGain()
        self.truncation_watch = TruncationWatch()
        self.reward_order_watch = RewardOrderWatch(config.ranking_settings)
        self.truncator = AttemptTruncator.of(
            config,
            self.tokenizer,
            self.environments[Split.TRAIN].unwrapped.reflection_guidance,
            context=context_of(self.model_configs.model),
            limit=config.reflection_settings.max_attempt_tokens,
        )

    def build_prompts(self, queries: Sequence[str]) -> list[Prompt]:
        """ISR: beside the plain prompts, a second turn after a stored failure for hard queries."""
        prompts = super().build_prompts(queries)
        reflections = self._reflection_prompts(queries) if self.config.reflection_settings.enabled else []
        self.record["reflection/prompts"] = float(len(reflections))
        self.record["reflection/history_lag"] = float(self.pipeline.ahead)
        return prompts + reflections

    def shape_rewards(self, groups: list[Group]) -> list[Group]:
        """SERR: rank the unverifiable responses of groups without a correct one."""
        groups = super().shape_rewards(groups)
        if warning := self.reward_order_watch.observe(groups):
            _logger.warning(warning)
        ranked = sum(self._rank(group) for group in groups) if self.config.ranking_settings.enabled else 0
        self.record["ranking/ranked"] = float(ranked)
        self._observe_reflection(groups)
        return groups

    def compose_groups(self, groups: list[Group]) -> list[Group]:
        """CCR: add opposite outcomes of the same query to homogeneous groups."""
        replayed = self._recall(groups) if self.config.replay_settings.enabled else []
        if replayed and self.config.replay_settings.ratio == "recomputed":
            self.score_samples(replayed)
        self.record["replay/added"] = float(len(replayed))
        self.record["replay/added_correct"] = float(sum(sample.rollout.correct for sample in replayed))
        return groups

    def compute_advantages(self, groups: list[Group]) -> list[Group]:
        """Eq. 3 over mixed groups, Eq. 1 elsewhere; groups without a correct member have a floor under their std.

        Other advantages than the default are taken over the mixed group as they are: they divide by nothing.
        """
        for group in groups:
            advantages = self._advantages(group)
            for sample, advantage in zip(group.samples, advantages, strict=True):
                sample.advantage = float(advantage)
        return groups

    def update_history(self, groups: Sequence[Group]) -> None:
        """Write this step's rollouts to the history, never the replayed ones; what dynamic sampling dropped as well."""
        if not self.remembers:
            return
        played = [*groups, *self.dropped]
        fresh = [sample for group in played for sample in group.samples if not sample.replayed]
        for sample in filter(is_finite, [*self.distilled, *fresh]):
            self.history.add(to_entry(sample, self.steps_done))
        for group in played:
            if group.prompt.context is Context.PLAIN:
                for sample in (sample for sample in group.samples if not sample.replayed):
                    self.history.record(group.prompt.uid, sample.rollout.correct, sample.reward)
        self.history.commit()
        self.record["replay/stored"] = float(len(self.history))
        self.record["replay/damaged"] = float(self.history.count_damaged())

    @property
    def remembers(self) -> bool:
        """Whether anything reads the history."""
        return self.config.replay_settings.enabled or self.config.reflection_settings.enabled

    def is_informative(self, group: Group) -> bool:
        """GRPO's; of the others, groups that replay will complete, and those with something to rank."""
        if super().is_informative(group):
            return True
        replay, ranking = self.config.replay_settings, self.config.ranking_settings
        if replay.enabled and self._sample_opposite_outcomes(group, np.random.default_rng(0)):
            return True
        return ranking.enabled and len(self.samples_needing_entropy([group])) > 1

    def update_policy(self, groups: Sequence[Group]) -> None:
        """GRPO's; before it, what is remembered but not trained on is scored under the policy that sampled."""
        self.score_untrained(groups)
        super().update_policy(groups)

    def score_untrained(self, groups: Sequence[Group]) -> None:
        """Log-probs of groups that dynamic sampling dropped, and of distilled answers under the bare prompt."""
        settings = self.config.reflection_settings
        played = [*groups, *self.dropped]
        self.distilled = self._distilled(played) if settings.enabled and settings.distill else []
        dropped = [sample for group in self.dropped for sample in group.samples] if self.remembers else []
        self.score_samples([*self.distilled, *dropped])

    def samples_to_score(self, groups: Sequence[Group]) -> list[Sample]:
        """GRPO's, and those that SERR will rank by their entropies."""
        samples = super().samples_to_score(groups)
        return samples or self.samples_needing_entropy(groups)

    def samples_needing_entropy(self, groups: Sequence[Group]) -> list[Sample]:
        """The members of all-wrong groups that SERR will rank."""
        ranking = self.config.ranking_settings
        if not ranking.enabled:
            return []
        unsolved = [sample for group in groups if not group.any_correct for sample in group.samples]
        return [sample for sample in unsolved if ranking.scope == "all" or sample.rollout.truncated]

    def finish_step(self, groups: list[Group], seconds: float) -> None:
        """GRPO's, and a warning when answers get longer instead of better."""
        super().finish_step(groups, seconds)
        warning = self.truncation_watch.observe(
            self.record.get("response/truncated", 0.0), self.record.get("reward/correct", 0.0)
        )
        if warning and self.config.ranking_settings.enabled:
            _logger.warning(warning)

    def get_training_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """GRPO's state, and the history or, if it is in a file, its mark in there."""
        arrays, state = super().get_training_state()
        history, metadata = self.history.save()
        return arrays | history, state | {"history": metadata}

    def counters(self) -> dict[str, Any]:
        """GRPO's, and what reflection paid lately: a step that is made again must not count its groups twice."""
        return super().counters() | {"payoff": self.payoff.state()}

    def set_training_state(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Put back GRPO's state and the history."""
        super().set_training_state(arrays, state)
        self.history.restore(arrays, state["history"])
        self.payoff.restore(state["payoff"])

    def keep_state_in(self, folder: Path) -> None:
        """Keep the history in a file of this folder instead of in memory; call it before anything is remembered."""
        folder.mkdir(parents=True, exist_ok=True)
        super().keep_state_in(folder)
        self.history.close()
        self.history = _history(self.config, folder / FILE_NAME)

    def start_again(self) -> None:
        """Forget what an earlier process remembered before its first checkpoint."""
        super().start_again()
        self.history.rollback(0)

    def prune(self, state: dict[str, Any]) -> None:
        """Free what only checkpoints older than this one's state still needed."""
        super().prune(state)
        self.history.prune(state["history"].get("mark", 0))

    def cleanup(self) -> None:
        """RLlib's, and close the history."""
        super().cleanup()
        self.history.close()

    def _reflection_prompts(self, queries: Sequence[str]) -> list[Prompt]:
        settings = self.config.reflection_settings
        needed = settings.min_attempts or self.config.training_settings.group_size
        rng = rng_for(self.seed, self.prompts_step, RngStream.REFLECTION)
        hard = [
            uid
            for uid in queries
            if is_hard(
                self.history.mean(uid, settings.statistic),
                self.history.attempts(uid),
                threshold=settings.threshold,
                min_attempts=needed,
            )
        ]
        chosen = share_limit(hard, len(queries), settings.max_share, rng)
        if settings.adaptive and chosen and not self.payoff.pays:
            chosen = [chosen[rng.integers(len(chosen))]]  # one a step still shows when it pays again
        prompts = []
        for uid in chosen:
            failure = self.history.failure(uid, rng)
            if failure is not None:
                attempt = attempt_of(failure.tokens, failure.prompt_length, failure.text)
                prompts.append(Prompt(uid, self.truncator.truncate(attempt)))
        return prompts

    def _observe_reflection(self, groups: Sequence[Group]) -> None:
        """Compare reflected answers with the plain ones of the same queries and step."""
        shares: dict[Context, dict[str, float]] = {Context.PLAIN: {}, Context.REFLECTION: {}}
        for group in groups:
            shares[group.prompt.context][group.prompt.uid] = _share_correct(group)
        plain, reflected = shares[Context.PLAIN], shares[Context.REFLECTION]
        for uid in filter(plain.__contains__, reflected):
            self.payoff.observe(reflected[uid], plain[uid])
        self.record["reflection/correct"] = float(np.mean(list(reflected.values()))) if reflected else 0.0
        self.record["reflection/pays"] = float(self.payoff.pays)

    def _rank(self, group: Group) -> int:
        settings = self.config.ranking_settings
        if not all(is_finite(sample) for sample in group.samples):
            return 0  # a policy that overflowed has no entropies to rank by
        rewards, ranked = ranked_rewards(
            np.array([self.outcome_reward(sample.rollout) for sample in group.samples]),
            np.array([sample.rollout.correct for sample in group.samples]),
            np.array([sample.rollout.truncated for sample in group.samples]),
            [None if s.entropies is None else s.response_entropies for s in group.samples],
            top_fraction=settings.top_fraction,
            max_reward=settings.max_reward,
            scope=settings.scope,
            baseline=settings.baseline,
        )
        for index in np.flatnonzero(ranked):
            sample = group.samples[index]
            sample.ranking_reward = float(rewards[index]) + self.overlong_penalty(sample.rollout)
        return int(ranked.sum())

    def _recall(self, groups: Sequence[Group]) -> list[Sample]:
        rng = rng_for(self.seed, self.steps_done, RngStream.REPLAY)
        replayed = []
        for index, group in enumerate(groups):
            if not group.homogeneous:
                continue
            recalled = [to_sample(entry, index) for entry in self._sample_opposite_outcomes(group, rng)]
            group.samples += recalled
            replayed += recalled
        return replayed

    def _sample_opposite_outcomes(self, group: Group, rng: np.random.Generator) -> list[ReplayEntry]:
        """What the history has for a homogeneous group."""
        settings = self.config.replay_settings
        return self.history.sample_opposite_outcomes(
            group.prompt.uid,
            correct_group=group.any_correct,
            k=settings.k,
            contexts=settings.contexts,
            context=group.prompt.context,
            rng=rng,
        )

    def _advantages(self, group: Group) -> np.ndarray:
        replay, ranking = self.config.replay_settings, self.config.ranking_settings
        rewards = np.array([sample.training_reward for sample in group.samples])
        if (kind := self.config.training_settings.advantage) != "std":
            return ADVANTAGES[kind](rewards)
        replayed = np.array([sample.replayed for sample in group.samples])
        floor = ranking.std_floor if ranking.enabled and not group.any_correct else 0.0
        plain = group_advantages(rewards, std_floor=floor)
        if not replayed.any():
            return plain
        scaled = group_advantages(rewards, std_scale=replay.std_scale, std_floor=floor)
        return scaled if replay.scale_rows == "all" else np.where(replayed, scaled, plain)

    def _distilled(self, groups: Sequence[Group]) -> list[Sample]:
        """Correct reflected answers under the bare prompt, their log-probs still to be computed there."""
        bare_prompts = {
            group.prompt.uid: group.samples[0].rollout for group in groups if group.prompt.context is Context.PLAIN
        }
        distilled = [
            strip_reflection(sample, bare_prompts[group.prompt.uid])
            for group in groups
            if group.prompt.context is Context.REFLECTION and group.prompt.uid in bare_prompts
            for sample in group.samples
            if sample.rollout.correct and not sample.replayed
        ]
        self.record["reflection/distilled"] = float(len(distilled))
        return distilled


def _share_correct(group: Group) -> float:
    return float(np.mean([sample.rollout.correct for sample in group.samples]))
