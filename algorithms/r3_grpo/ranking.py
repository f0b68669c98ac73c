"""SERR: a ranking reward for responses whose outcome could not be verified, by the structure of their entropies.

The default is the paper's order. With `ranking.order: flat` all ranks tie, which makes it a flat penalty on truncation
and spares the pass that scores entropies; the two were indistinguishable (docs/results/evidence.md).
"""

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import field_validator

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Group, Mechanism, Sample, Services, Settings, StepBatch, setting
from algorithms.grpo.rewards import rank_rewards
from algorithms.r3_grpo.truncation_watch import TruncationWatch

if TYPE_CHECKING:  # loads Ray
    from algorithms.config.base import BaseConfig

Order = Literal["entropy", "flat", "random"]
Scope = Literal["truncated", "all"]
Baseline = Literal["finished_wrong", "centered", "paper"]

# What each baseline takes off the ranked rewards, as a share of the largest; half of it is their mean.
SHIFTS: dict[str, float] = {"finished_wrong": 1.0, "centered": 0.5, "paper": 0.0}

_logger = logging.getLogger(__name__)


class RankingSettings(Settings):
    """Ranking reward (SERR): pay the unverifiable responses of a group without a correct one by their ranks."""

    enabled: bool = setting(True, "Whether to rank.", hparam=True)
    order: Order = setting(
        "entropy",
        "What to rank by: the structure of the responses' entropies, as in the paper; nothing, so that all ranks tie; "
        "or chance, as a control.",
    )
    top_fraction: float = setting(
        0.2,
        "With `order: entropy` the share of a response's tokens over which its entropy peak is the mean.",
        gt=0,
        le=1,
    )
    max_reward: float = setting(
        0.1,
        "Reward of the first rank; below 1, the smallest reward of a correct response.",
        ge=0,
        lt=1,
        hparam=True,
    )
    scope: Scope = setting("truncated", "Which responses of an all-incorrect group to rank.", hparam=True)
    baseline: Baseline = setting(
        "finished_wrong",
        "How to shift the ranked rewards: so that no truncated response gets more than a finished incorrect one, to "
        "a mean of 0, or not at all, as in the paper.",
        hparam=True,
    )
    std_floor: float = setting(
        0.5,
        "Minimum standard deviation that divides the advantages of a group with ranked responses.",
        ge=0,
        hparam=True,
    )

    @field_validator("baseline", mode="before")
    @classmethod
    def _spelling(cls, value: Any) -> Any:
        return "centered" if value == "centred" else value


class Ranking(Mechanism):
    """Ranks the unverifiable responses of groups without a correct one, and sets a floor for the deviation there."""

    section = "ranking"
    settings_class = RankingSettings
    tags = {"ranking/ranked": 0.0, "ranking/groups": 0.0, "ranking/ordered": 0.0}
    settings: RankingSettings

    def __init__(self, settings: RankingSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.truncation_watch = TruncationWatch()
        self._order_reported = False

    @classmethod
    def check(cls, settings: RankingSettings, config: "BaseConfig") -> None:
        """Raise ConfigError where a ranked response could earn more than a correct one, or is not trained on."""
        least = 1.0 - config.reward_settings.overlong_penalty
        if settings.enabled and settings.scope == "all" and settings.max_reward >= least:
            raise ConfigError(
                f"ranking.max_reward: {settings.max_reward:g} is not below {least:g}, the least that a correct "
                "response gets with reward.overlong_penalty; fix: lower one of them"
            )
        if settings.enabled and settings.scope == "truncated" and config.training_settings.mask_truncated:
            raise ConfigError(
                "training.mask_truncated: leaves out of the loss the truncated responses that ranking rewards; fix: "
                "ranking.enabled=false, or training.mask_truncated=false"
            )
        if settings.baseline == "finished_wrong" and settings.scope != "truncated":
            raise ConfigError(
                f"ranking.baseline: 'finished_wrong' compares with unranked responses, and ranking.scope="
                f"{settings.scope} ranks them all; fix: ranking.scope=truncated or ranking.baseline=centered"
            )
        if settings.enabled and settings.order == "flat" and settings.baseline == "centered":
            raise ConfigError(
                "ranking.baseline: 'centered' pays 0 for each of ranks that all tie, as ranking.order=flat has them; "
                "fix: ranking.order=entropy"
            )
        if settings.enabled and settings.order == "flat" and settings.scope == "all":
            raise ConfigError(
                "ranking.scope: all pays all responses of an all-incorrect group alike, in place of their own rewards, "
                "as ranking.order=flat has no ranks; fix: ranking.order=entropy"
            )
        usual = cls.settings_class.model_fields["top_fraction"].default
        if settings.order != "entropy" and settings.top_fraction != usual:
            raise ConfigError(
                f"ranking.top_fraction: {settings.top_fraction:g} does nothing where no entropies rank "
                f"(ranking.order={settings.order}); fix: ranking.order=entropy"
            )

    def needs(self, group: Group) -> list[Sample]:
        """Return the members of an all-incorrect group that will be ranked by their entropies."""
        return self._ranked(group) if self.settings.order == "entropy" else []

    def is_informative(self, group: Group) -> bool:
        """Return whether ranking will pay the group's responses differently."""
        ranked = len(self._ranked(group))  # ranks that all tie only tell the ranked from the others
        return ranked > 1 and (self.settings.order != "flat" or ranked < len(group.samples))

    def rewards(self, group: Group) -> None:
        """Give the ranked responses their ranking reward in the outcome's place."""
        if group.any_correct:
            self._check_order(group)
        if not all(sample.is_finite for sample in group.samples):
            return  # a policy that overflowed has no entropies to rank by
        rewards, ranked = ranked_rewards(
            np.array([sample.reward for sample in group.samples]),
            np.array([sample.rollout.correct for sample in group.samples]),
            np.array([sample.rollout.truncated for sample in group.samples]),
            [sample.entropies for sample in group.samples],
            top_fraction=self.settings.top_fraction,
            max_reward=self.settings.max_reward,
            scope=self.settings.scope,
            baseline=self.settings.baseline,
            order=self.settings.order,
            rng=self._chance() if self.settings.order == "random" else None,
        )
        # What ranks add to: some environments pay less than 0 for an incorrect answer.
        paid = min(0.0, min((sample.rollout.reward for sample in group.samples), default=0.0))
        chosen = [group.samples[index] for index in np.flatnonzero(ranked)]
        earned = paid + rewards[ranked] + np.array([sample.length_penalty for sample in chosen], float)
        finished = [sample.reward for sample in group.samples if not sample.rollout.truncated]
        if self.settings.baseline == "finished_wrong" and chosen and finished:
            # Nor more than a finished response that is penalized for its length.
            earned -= max(0.0, earned.max() - min(finished))
        for sample, reward in zip(chosen, earned.tolist(), strict=True):
            sample.shaped_reward = reward
        self.metrics["ranking/ranked"] += float(ranked.sum())
        if ranked.sum() > 1:
            self.metrics["ranking/groups"] += 1.0
            self.metrics["ranking/ordered"] += float(np.ptp(rewards[ranked]) > 0)

    def normalize(self, group: Group) -> None:
        """Give groups with ranked responses, and no correct one, smaller advantages than mixed ones."""
        if len(self._ranked(group)) > 1:
            group.std_floor = max(group.std_floor, self.settings.std_floor)

    def update_history(self, batch: StepBatch) -> None:
        """Warn when answers get longer instead of better."""
        fresh = [(sample.rollout.truncated, sample.rollout.correct) for sample in batch.fresh]
        shares = np.mean(fresh, axis=0) if fresh else np.full(2, np.nan)
        if warning := self.truncation_watch.observe(float(shares[0]), float(shares[1])):
            _logger.warning(warning)

    def _ranked(self, group: Group) -> list[Sample]:
        """Return the members that are ranked: of an all-incorrect group alone."""
        if group.any_correct:
            return []
        return [sample for sample in group.samples if self.settings.scope == "all" or sample.rollout.truncated]

    def _chance(self) -> np.random.Generator:
        """Make the stream that draws a group's ranks."""
        return self.services.rng(self.section, self.services.step, int(self.metrics["ranking/groups"]))

    def _check_order(self, group: Group) -> None:
        """Warn once when an environment pays a correct answer no more than the best truncated one earns."""
        least = min(sample.reward for sample in group.samples if sample.rollout.correct)
        highest = 0.5 if self.settings.order == "flat" else 1.0
        best = self.settings.max_reward * (highest - SHIFTS[self.settings.baseline])
        if self._order_reported or least > best:
            return
        self._order_reported = True
        _logger.warning(
            "a correct response earned %g, and the best truncated one earns %g: a policy may learn to write until it "
            "is truncated; lower ranking.max_reward, let the environment pay more for correct answers, or lower "
            "reward.overlong_penalty",
            least,
            best,
        )


def structural_entropy_rewards(
    token_entropies: Sequence[np.ndarray], *, top_fraction: float, max_reward: float
) -> np.ndarray:
    """Reward N responses by how decided they are overall and how exploratory at their peaks.

    Response i dominates j when the mean of its `max(1, ⌊top_fraction · L_i⌋)` largest token entropies is
    larger and the mean of all its token entropies is smaller. Responses are ranked by how many others they
    dominate; rank k (from 0) earns `max_reward · (1 - k / (N - 1))`, and ties share the mean of their ranks.

    A response of no tokens shows no structure: every other response dominates it, so it ranks last.

    Args:
        token_entropies: N arrays [L_i] in nats: full-vocabulary, of response tokens only, no padding.
        top_fraction: share of a response's tokens that make its peak, within [0, 1].
        max_reward: the best rank's reward, not negative.

    Returns:
        float64 [N], the paper's values within [0, max_reward]; a single response gets 0.

    Raises:
        ValueError: entropies are not one-dimensional or not finite, or a setting is out of range.

    Source: SERR, arXiv 2601.19620; shared ranks, N = 1 and empty responses are ours.
    """
    if not 0.0 <= top_fraction <= 1.0:
        raise ValueError(f"top_fraction must lie within [0, 1], got {top_fraction}")
    if not (math.isfinite(max_reward) and max_reward >= 0):
        raise ValueError(f"max_reward must be finite and not negative, got {max_reward}")
    peaks, means = _peaks_and_means(token_entropies, top_fraction)
    dominates = (peaks[:, None] > peaks[None, :]) & (means[:, None] < means[None, :])
    scores = dominates.sum(axis=1)
    better = (scores[None, :] > scores[:, None]).sum(axis=1)
    tied = (scores[None, :] == scores[:, None]).sum(axis=1) - 1
    return rank_rewards(better + tied / 2, max_reward)


def ranked_rewards(
    rewards: np.ndarray,
    correct: np.ndarray,
    truncated: np.ndarray,
    token_entropies: Sequence[np.ndarray | None],
    *,
    top_fraction: float,
    max_reward: float,
    scope: Scope,
    baseline: Baseline,
    order: Order = "entropy",
    rng: np.random.Generator | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Apply SERR to one group: rank its unverifiable responses if none of its responses is correct.

    Ranked responses get their ranking reward in place of their own; the others keep theirs (0 for wrong
    ones). With `finished_wrong` the ranked rewards are shifted by `-max_reward`, so that no truncated
    response earns more than a finished wrong one. With `centered` they are shifted to a mean of 0, so that neither
    running on nor giving up pays by itself. A response that is ranked alone gets 0, never shifted.

    Args:
        rewards: float [G].
        correct: bool [G].
        truncated: bool [G], the response hit the length limit.
        token_entropies: G arrays [L_i] in nats; None where the response is out of scope, or no entropies rank.
        top_fraction: see `structural_entropy_rewards`.
        max_reward: see `structural_entropy_rewards`; below the smallest reward of a correct response.
        scope: rank only `truncated` responses (Algorithm 1) or `all` of them.
        baseline: `finished_wrong` and `centered` shift, `paper` does not.
        order: `entropy` ranks by `structural_entropy_rewards`; with `flat` all ranks tie, with `random` they are drawn.
        rng: draws the ranks of `random`.

    Returns:
        float64 [G], the new rewards, and bool [G], which responses were ranked. A group with a correct member
        comes back unchanged with nothing ranked.

    Raises:
        ValueError: lengths differ, a ranked response has no entropies, or settings are unknown or do not go
            together.

    Source: Algorithm 1, arXiv 2601.19620; `baseline` and the other orders are ours.
    """
    _check_settings(scope, baseline)
    shaped = np.array(rewards, dtype=np.float64)
    correct, truncated = np.asarray(correct, dtype=bool), np.asarray(truncated, dtype=bool)
    if shaped.ndim != 1 or not shaped.shape == correct.shape == truncated.shape == (len(token_entropies),):
        raise ValueError(
            "rewards, correct, truncated and token_entropies must be of one length, got shapes "
            f"{shaped.shape}, {correct.shape}, {truncated.shape} and {len(token_entropies)} responses"
        )

    if correct.any():
        return shaped, np.zeros(len(shaped), dtype=bool)
    ranked = truncated.copy() if scope == "truncated" else np.ones(len(shaped), dtype=bool)
    if order == "entropy":
        chosen = _entropies(token_entropies, np.flatnonzero(ranked).tolist())
        values = structural_entropy_rewards(chosen, top_fraction=top_fraction, max_reward=max_reward)
    else:
        values = _without_entropies(int(ranked.sum()), max_reward, rng if order == "random" else None)
    if len(values) > 1:
        values = values - SHIFTS[baseline] * max_reward
    shaped[ranked] = values
    return shaped, ranked


def _entropies(token_entropies: Sequence[np.ndarray | None], ranked: Sequence[int]) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for index in ranked:
        entropies = token_entropies[index]
        if entropies is None:
            raise ValueError(f"response {index} is to be ranked, but its entropies were not computed")
        found.append(entropies)
    return found


def _without_entropies(count: int, max_reward: float, rng: np.random.Generator | None) -> np.ndarray:
    """Return rewards [count] of ranks that all tie, or that `rng` draws; a response that is ranked alone gets 0."""
    if count < 2:
        return np.zeros(count)
    ranks: np.ndarray = np.full(count, 0.5) if rng is None else rng.permutation(count) / (count - 1)
    return max_reward * ranks


def _check_settings(scope: str, baseline: str) -> None:
    if scope not in ("truncated", "all"):
        raise ValueError(f"scope must be truncated or all, got {scope!r}")
    if baseline not in SHIFTS:
        raise ValueError(f"baseline must be one of {', '.join(SHIFTS)}, got {baseline!r}")
    if baseline == "finished_wrong" and scope != "truncated":
        raise ValueError("baseline finished_wrong needs scope truncated: use it, or baseline centered or paper")


def _peaks_and_means(token_entropies: Sequence[np.ndarray], top_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Give each response its peak and its mean entropy, [N] each."""
    peaks = np.full(len(token_entropies), -np.inf)
    means = np.full(len(token_entropies), np.inf)
    for index, entropies in enumerate(token_entropies):
        # Sorted, so that equal entropies in another order sum to the same float and stay a tie.
        descending = np.sort(np.asarray(entropies, dtype=np.float64))[::-1]
        if descending.ndim != 1 or not np.isfinite(descending).all():
            raise ValueError(f"response {index}: entropies must be a finite 1-D array")
        if descending.size:
            top = max(1, math.floor(top_fraction * descending.size))
            peaks[index], means[index] = _mean(descending[:top]), _mean(descending)
    return peaks, means


def _mean(values: np.ndarray) -> float:
    """Average around the first value: exact for equal ones, so that constant responses of any length tie."""
    return float(values[0] + (values - values[0]).mean())
