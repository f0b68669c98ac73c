"""ISR, in-context self-reflection: pose a query that keeps failing also after one of its failed attempts."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from algorithms.grpo.mechanism import (
    Group,
    Mechanism,
    Prompt,
    Sample,
    Services,
    Settings,
    State,
    StepBatch,
    setting,
)
from algorithms.grpo.prompt_share import draw_at_most, most_in_share
from algorithms.grpo.types import with_prompt_of
from algorithms.rollout.types import NEW_CONTEXT, Context

GROUPS = 32
ENOUGH = 8


class ReflectionSettings(Settings):
    """In-context self-reflection (ISR): pose a hard query also with one of its failed attempts in the prompt."""

    enabled: bool = setting(True, "Whether to add reflection prompts.", hparam=True)
    threshold: float = setting(
        0.25, "A query is hard when its mean in the history is below this (τ).", ge=0, hparam=True
    )
    statistic: Literal["correct", "reward"] = setting(
        "correct",
        "What that mean is computed from: correctness, or the reward with its length bonus (the paper).",
    )
    min_attempts: int | None = setting(
        None,
        "Past attempts that a query needs before it can count as hard; null: `training.group_size`.",
        ge=1,
    )
    max_share: float = setting(
        0.25,
        "Maximum share of a step's prompts that are reflection prompts; 1: no limit.",
        ge=0,
        le=1,
        hparam=True,
    )
    max_attempt_tokens: int | None = setting(
        2048,
        "Length in tokens to which a quoted attempt is cut, head and tail kept; null: cut only at the context limit.",
        ge=2,
    )
    adaptive: bool = setting(
        True,
        "Whether to limit reflection prompts to one per step while reflected answers are no more often correct than "
        "plain ones to the same queries, over the newest 32 reflection groups.",
    )
    distill: bool = setting(
        True,
        "Whether a correct reflected answer also enters the history as an answer to the plain query.",
        hparam=True,
    )
    distill_gap: float | None = setting(
        None,
        "Maximum loss of log-prob, in nats per token, of such an answer when the attempt is removed from its prompt: "
        "an answer that mentions the attempt loses much. null: no limit.",
        gt=0,
        hparam=True,
    )


class Reflection(Mechanism):
    """Adds second turns after stored failures for hard queries, while that helps."""

    section = "reflection"
    settings_class = ReflectionSettings
    tags = {
        "reflection/prompts": 0.0,
        "reflection/history_lag": 0.0,
        "reflection/correct": 0.0,
        "reflection/pays": 1.0,
        "reflection/distilled": 0.0,
        "reflection/distill_gap": 0.0,
    }
    uses_history = True
    settings: ReflectionSettings

    def __init__(self, settings: ReflectionSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.gain = ReflectionGain()
        self.distilled: list[tuple[Sample, Sample]] = []
        self.truncator = services.truncator(settings.max_attempt_tokens)

    @classmethod
    def extra_prompts(cls, settings: ReflectionSettings, queries: int) -> int:
        """Count the reflection prompts of a step at most; a query gets one."""
        return min(queries, most_in_share(settings.max_share, queries))

    @classmethod
    def quoted_tokens(cls, settings: ReflectionSettings, response_limit: int) -> int:
        """Count the tokens of a quoted attempt at most."""
        return min(response_limit, settings.max_attempt_tokens or response_limit)

    def prompts(self, queries: Sequence[str], step: int) -> list[Prompt]:
        """Return a second turn after a stored failure for each hard query that is chosen."""
        rng, prompts = self.services.rng(self.section, step), []
        for uid in self._chosen(queries, rng):
            failure = self.services.history.sample_failure(uid, rng)
            if failure is not None:
                text = failure.text or self.truncator.text(failure.tokens, failure.loss_mask)
                attempt = self.truncator.attempt(failure.tokens, failure.loss_mask, text, failure.feedback)
                prompts.append(Prompt(uid, Context.REFLECTION, attempt=self.truncator.truncate(attempt)))
        self.metrics["reflection/prompts"] = float(len(prompts))
        self.metrics["reflection/history_lag"] = float(step - self.services.step)
        return prompts

    def before_update(self, batch: StepBatch) -> None:
        """Add correct reflected answers to the history as answers to the plain query, too.

        Those that `distill_gap` leaves out are known after the update, which scores them.
        """
        if self.settings.distill:
            self.distilled = distilled_samples(batch.rolled_out)
            batch.for_history += [bare for _, bare in self.distilled]

    def update_history(self, batch: StepBatch) -> None:
        """Keep the distilled answers that do not need the attempt, and update the gain of reflection.

        Reflected answers are compared with the plain ones to the same queries in the same step.
        """
        self._keep_distilled(batch)
        plain, reflected = (
            {uid: float(np.mean(correct)) for uid, correct in batch.outcomes(context).items()}
            for context in (Context.PLAIN, Context.REFLECTION)
        )
        for uid in filter(plain.__contains__, reflected):
            self.gain.observe(reflected[uid], plain[uid])
        self.metrics["reflection/correct"] = float(np.mean(list(reflected.values()))) if reflected else 0.0
        self.metrics["reflection/pays"] = float(self.gain.positive)

    def _keep_distilled(self, batch: StepBatch) -> None:
        """Measure what distilled answers lose without the attempt, and drop those that lose too much."""
        gaps = {id(bare): distillation_gap(reflected, bare) for reflected, bare in self.distilled}
        limit = math.inf if self.settings.distill_gap is None else self.settings.distill_gap
        dropped = {key for key, gap in gaps.items() if gap > limit}
        batch.for_history = [sample for sample in batch.for_history if id(sample) not in dropped]
        self.metrics["reflection/distilled"] = float(len(gaps) - len(dropped))
        self.metrics["reflection/distill_gap"] = float(np.mean(list(gaps.values()))) if gaps else 0.0
        self.distilled = []

    def state(self) -> State:
        """Return the recent gain of reflection."""
        return {}, {"gain": self.gain.state()}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Put it back."""
        self.gain.restore(state.get("gain", []))

    def _chosen(self, queries: Sequence[str], rng: np.random.Generator) -> list[str]:
        settings, history = self.settings, self.services.history
        needed = settings.min_attempts or self.services.config.training_settings.group_size
        hard = [
            uid
            for uid in dict.fromkeys(queries)  # a step across two passes over the data can have one twice
            if is_hard(
                history.mean(uid, settings.statistic),
                history.attempts(uid),
                threshold=settings.threshold,
                min_attempts=needed,
            )
        ]
        chosen = share_limit(hard, len(queries), settings.max_share, rng)
        if settings.adaptive and chosen and not self.gain.positive:
            chosen = [chosen[rng.integers(len(chosen))]]  # one per step still shows when it gains again
        return chosen


def is_hard(mean: float | None, attempts: int, *, threshold: float, min_attempts: int) -> bool:
    """Return whether a query has failed persistently: enough attempts, and their mean below the threshold.

    Args:
        mean: the mean of the query's historical outcomes (`ReplayHistory.mean`); None without history.
        attempts: plain attempts so far.
        threshold: τ; a mean equal to it is not hard.
        min_attempts: attempts below which nothing is concluded.

    Source: ISR, arXiv 2601.19620; `min_attempts` is ours (the paper: from the second epoch on).
    """
    return mean is not None and attempts >= min_attempts and mean < threshold


def share_limit(hard: Sequence[str], batch_size: int, max_share: float, rng: np.random.Generator) -> list[str]:
    """Choose the hard queries that get a reflection prompt: at most a share of the batch, those included.

    With P plain prompts and R reflection prompts, `R ≤ max_share · (P + R)`.

    Args:
        hard: uids of the batch's hard queries.
        batch_size: P, the plain prompts of the batch.
        max_share: the share, within [0, 1]; 1 sets no limit.
        rng: draws which ones stay where there are too many; not touched otherwise.

    Returns:
        The chosen uids, in the order of `hard`.

    Raises:
        ValueError: `max_share` or `batch_size` is out of range.
    """
    return draw_at_most(hard, most_in_share(max_share, batch_size), rng)


class ReflectionGain:
    """The success of the newest reflection groups, compared with plain groups of the same queries and steps.

    A policy may stop making use of its failed attempts, be it that it never could or that training made it forget:
    then its reflected answers cost as many tokens and teach nothing that plain ones do not.
    """

    def __init__(self) -> None:
        self._groups: deque[tuple[float, float]] = deque(maxlen=GROUPS)

    def observe(self, reflected: float, plain: float) -> None:
        """Record a query's reflection group and its plain group: the share of correct answers in each."""
        self._groups.append((reflected, plain))

    @property
    def positive(self) -> bool:
        """Whether reflected answers were correct more often over the newest `GROUPS`; True before `ENOUGH` exist."""
        if len(self._groups) < ENOUGH:
            return True
        return sum(reflected for reflected, _ in self._groups) > sum(plain for _, plain in self._groups)

    def state(self) -> list[tuple[float, float]]:
        """Return the state for a checkpoint, as JSON."""
        return list(self._groups)

    def restore(self, groups: Sequence[Sequence[float]]) -> None:
        """Restore the result of `state`."""
        self._groups.clear()
        self._groups.extend((reflected, plain) for reflected, plain in groups)


def distillation_gap(reflected: Sample, bare: Sample) -> float:
    """Return the nats per token by which a reflected answer is likelier after the attempt than under the bare prompt.

    Args:
        reflected: the answer as it was sampled.
        bare: the same tokens under the bare prompt, with `old_logprobs`.

    Returns:
        The mean over tokens; infinite where the policy gave no numbers, 0 without tokens.

    Source: ours.
    """
    if bare.old_logprobs is None:
        return math.inf
    after = reflected.rollout.sampling_logprobs
    gap = float(np.sum(after.astype(np.float64) - bare.old_logprobs)) / max(1, len(after))
    return gap if math.isfinite(gap) else math.inf


def distilled_samples(groups: Sequence[Group]) -> list[tuple[Sample, Sample]]:
    """Return correct reflected answers, each with a copy under the plain prompt, without log-probs there."""
    plain = {group.prompt.uid: group.own_rollout for group in groups if group.prompt.context == Context.PLAIN}
    return [
        (sample, with_prompt_of(sample, own, Context.DISTILLED))
        for group in groups
        if group.prompt.context == Context.REFLECTION and (own := plain.get(group.prompt.uid)) is not None
        for sample in group.fresh
        # What later turns were conditioned on would be the reflection prompt again.
        if sample.rollout.correct and NEW_CONTEXT not in sample.rollout.tokens
    ]
