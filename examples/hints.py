"""A mechanism of your own: a query that no response solved is posed again, with the hint in its data.

python -m algorithms.r3_grpo environment.data=hinted.jsonl environment.columns.hint=hint \
    'training.mechanisms=[examples.hints:Hints]' hints.max_groups=2
"""

from collections.abc import Sequence

from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Settings, StepBatch, setting


class HintSettings(Settings):
    """Hints for queries that no response solved."""

    enabled: bool = setting(True, "Whether to give hints.")
    max_groups: int = setting(4, "Hinted groups per step at most.", ge=1)


class Hints(Mechanism):
    """Rolls out unsolved queries again with `Query.info["hint"]`, as separate groups."""

    section = "hints"
    settings_class = HintSettings
    tags = {"hints/groups": 0.0, "hints/solved": 0.0}

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Return a hinted prompt for each unsolved query that has a hint, once per step."""
        unsolved = [group.prompt.uid for group in groups if group.prompt.context == "plain" and not group.any_correct]
        hints = {uid: self.services.query(uid).info.get("hint", "") for uid in unsolved if round == 1}
        prompts = [Prompt(uid, "hint", hint=hint) for uid, hint in hints.items() if hint][: self.settings.max_groups]
        self.metrics["hints/groups"] += len(prompts)
        return prompts

    def update_history(self, batch: StepBatch) -> None:
        """Report how many hinted groups hold a correct response."""
        solved = (group.any_correct for group in batch.rolled_out if group.prompt.context == "hint")
        self.metrics["hints/solved"] = float(sum(solved))
