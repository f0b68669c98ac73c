"""SELF: answer each query greedily first, and sample only those whose greedy answer is incorrect."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Settings, StepBatch, setting

GREEDY = "greedy"


class SelfSettings(Settings):
    """Train only on queries that the policy's most likely answer gets wrong."""

    enabled: bool = setting(True, "Whether to leave out queries that are answered correctly by greedy decoding.")


class SelfFilter(Mechanism):
    """Keeps the queries of a step whose greedy answer is incorrect, and samples `training.group_size` responses each.

    One more response a query, without state. Steps get smaller as the policy gets better; one without a wrong answer
    changes nothing. With `training.max_off_policy_steps` the greedy answers run ahead, and the samples in the step that
    trains on them.

    Source: "The Reasoning Boundary Paradox", arXiv 2510.02230, and the authors' code, which does not fill up the step
    either.
    """

    section = "self_filter"
    settings_class = SelfSettings
    tags = {"self_filter/kept": 0.0, "self_filter/greedy_correct": 0.0}
    conflicts = dict.fromkeys(("knapsack", "gdro"), "both decide how many responses each of a step's queries gets")
    settings: SelfSettings

    @classmethod
    def check(cls, settings: SelfSettings, config: Any) -> None:
        """Raise ConfigError where further rounds would sample queries that no greedy answer was seen of."""
        rounds = config.training_settings.max_resample_rounds
        if settings.enabled and rounds:
            raise ConfigError(
                f"training.max_resample_rounds: {rounds} samples further queries, which self_filter does not filter; "
                "fix: training.max_resample_rounds=0"
            )

    @classmethod
    def quoted_tokens(cls, settings: SelfSettings, response_limit: int) -> int:
        """Return 0: its prompts are the plain ones."""
        return 0

    def shape_prompts(self, prompts: list[Prompt], step: int) -> list[Prompt]:
        """Answer each query once, greedily."""
        return [replace(prompt, context=GREEDY, size=1, greedy=True) for prompt in prompts]

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Return plain prompts of the queries with an incorrect answer."""
        if round > 1:
            return []
        greedy = [group for group in groups if group.prompt.context == GREEDY]
        wrong = [group.prompt.uid for group in greedy if not group.any_correct]
        self.metrics["self_filter/kept"] = float(len(wrong))
        self.metrics["self_filter/greedy_correct"] = 1.0 - len(wrong) / len(greedy) if greedy else 0.0
        return [Prompt(uid) for uid in wrong]

    def compose(self, batch: StepBatch) -> None:
        """Leave the greedy answers out of training."""
        batch.leave_out(GREEDY)
