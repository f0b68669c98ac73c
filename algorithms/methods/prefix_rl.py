"""PrefixRL: in addition to plain prompts, hard queries with the beginning of a success, which the policy completes."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Mechanism, Prompt, Services, Settings, StepBatch, setting
from algorithms.methods.prefixes import body_length, encode_text, flawed_prefix
from algorithms.rollout.types import Context

PREFIX, FLAWED = "prefix", "flawed_prefix"
PER_QUERY = 3  # prefixed prompts per hard query
SOLUTION = "solution"  # the column of the data


class PrefixSettings(Settings):
    """Add prompts with a begun answer: the first part of a success, which gets no gradient."""

    enabled: bool = setting(True, "Whether to add prefixed prompts.")
    low: float = setting(0.4, "Minimum share of a success to give.", gt=0, lt=1)
    high: float = setting(0.8, "Maximum share of a success to give.", gt=0, lt=1)
    source: Literal["history", "data", "both"] = setting(
        "history",
        "Where successes come from: stored plain ones of a single turn, the data's column `solution` "
        "(`environment.columns`), or both: the data where the history has none.",
    )
    threshold: float = setting(
        0.5,
        "A query is hard when the share of correct answers among its plain attempts is below this; 1: all "
        "queries are hard. Ours.",
    )
    flawed: float = setting(0.0, "Share of prefixes that get one error.", ge=0, le=1)
    flaw: Literal["digit", "step", "sign"] = setting(
        "digit", "The error: another digit, an incorrect result of a step (the number after a `=`), or a flipped sign."
    )


class PrefixRL(Mechanism):
    """A hard query also comes with the first h tokens of a success, h uniform in 40 to 80 % of it, three times.

    `Σ_prefixed E[r] + Σ_plain E[r]`: each prefixed prompt is a group of its own. The environment judges prefix and
    continuation as one response, and together they are at most `env_runners.max_response_tokens` long. A prefix ends
    before the final answer, a box or the end of the reasoning: shares are of what precedes it, which is ours.

    Source: arXiv 2601.18795 (detailed notes: shares, three a query, no gradient on the prefix). Its successes are
    rejection-sampled beforehand; here they are stored ones, or the data's. Flawed prefixes: Mixed-CoT-RL, arXiv
    2512.17079, of which the abstract alone was read ("CoT prefixes containing exactly one controlled error").
    """

    section = "prefix_rl"
    settings_class = PrefixSettings
    tags = {"prefix_rl/prompts": 0.0, "prefix_rl/flawed": 0.0, "prefix_rl/correct": 0.0, "prefix_rl/recovered": 0.0}
    uses_history = True
    settings: PrefixSettings

    def __init__(self, settings: PrefixSettings, services: Services) -> None:
        super().__init__(settings, services)
        if settings.source != "history" and not any([self.solution(uid) for uid in services.uids]):
            raise ConfigError(
                f"environment.columns.{SOLUTION}: no query has a solution; fix: name the data's column of solutions, "
                "or prefix_rl.source=history"
            )

    @classmethod
    def check(cls, settings: PrefixSettings, config: Any) -> None:
        """Raise ConfigError for shares in the wrong order."""
        if settings.low > settings.high:
            raise ConfigError(f"prefix_rl.low: {settings.low} is above prefix_rl.high={settings.high}; fix: swap them")

    @classmethod
    def extra_prompts(cls, settings: PrefixSettings, queries: int) -> int:
        """Count the prefixed prompts of a step at most."""
        return queries * PER_QUERY

    @classmethod
    def quoted_tokens(cls, settings: PrefixSettings, response_limit: int) -> int:
        """Return 0: prompts quote nothing beyond the allowed length of a response."""
        return 0

    def prompts(self, queries: Sequence[str], step: int) -> list[Prompt]:
        """Return the prefixed prompts of each hard query that has a success."""
        rng, prompts = self.services.rng(self.section, step), []
        for uid in filter(self.is_hard, dict.fromkeys(queries)):
            traces = self.stored(uid, rng) if self.settings.source != "data" else []
            if not traces and self.settings.source != "history" and (solution := self.solution(uid)):
                traces = [encode_text(self.services.tokenizer, solution)]
            for number in range(PER_QUERY if traces else 0):
                prompts += self.prefixed(uid, traces[number % len(traces)], rng)
        self.metrics["prefix_rl/prompts"] = float(len(prompts))
        self.metrics["prefix_rl/flawed"] = float(sum(prompt.context == FLAWED for prompt in prompts))
        return prompts

    def is_hard(self, uid: str) -> bool:
        """Return whether a query gets prefixes; below a threshold of 1, one without attempts gets none."""
        mean = self.services.history.mean(uid, "correct")
        return self.settings.threshold >= 1 or (mean is not None and mean < self.settings.threshold)

    def solution(self, uid: str) -> str:
        """Return the data's solution of a query; empty if it has none.

        Raises:
            ConfigError: it is no text.
        """
        found = self.services.query(uid).info.get(SOLUTION) or ""
        if not isinstance(found, str):
            raise ConfigError(f"environment.columns.{SOLUTION}: that of query {uid} is not text; fix: make it text")
        return found

    def stored(self, uid: str, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw stored successes, token for token. A first turn that others followed is the beginning of none."""
        drawn = self.services.history.sample_opposite_outcomes(
            uid, correct_group=False, k=PER_QUERY, contexts="same", context=Context.PLAIN, rng=rng
        )
        return [entry.response_tokens for entry in drawn if entry.loss_mask[entry.prompt_length :].all()]

    def prefixed(self, uid: str, trace: np.ndarray, rng: np.random.Generator) -> list[Prompt]:
        """Return a prompt with the beginning of a success, int32 [L]; none where all of it is answer."""
        tokenizer, settings = self.services.tokenizer, self.settings
        share, flawed = rng.uniform(settings.low, settings.high), rng.random() < settings.flawed
        limit = self.services.config.env_runners_settings.max_response_tokens
        length = min(int(share * body_length(tokenizer, trace)), int(settings.high * limit))
        begun, context = trace[:length], PREFIX
        wrong = flawed_prefix(tokenizer, begun, settings.flaw, rng) if flawed else None
        if wrong is not None:
            begun, context = wrong[: limit - 1], FLAWED
        return [Prompt(uid, context, response_prefix=begun)] if len(begun) else []

    def update_history(self, batch: StepBatch) -> None:
        """Report the results of the prefixes."""
        for context, tag in ((PREFIX, "prefix_rl/correct"), (FLAWED, "prefix_rl/recovered")):
            groups = [group for group in batch.rolled_out if group.prompt.context == context]
            correct = [sample.rollout.correct for group in groups for sample in group.fresh]
            self.metrics[tag] = float(np.mean(correct)) if correct else 0.0
