"""Scaf-GRPO: a group without a correct response gets one that was sampled with a hint; without the hint, it is EGSR."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Sample, Services, Settings, StepBatch, setting
from algorithms.grpo.types import with_prompt_of
from algorithms.rollout.types import NEW_CONTEXT, Context

HINTED = "hinted"

HINTS = "hints"  # the column of the data: a list of texts, the least help first, or one text


class ScafGrpoSettings(Settings):
    """Give hints, level by level, for queries that the policy cannot solve alone."""

    enabled: bool = setting(True, "Whether to give hints.")
    warmup: int = setting(50, "Steps before the first hint.", ge=0)
    levels: Literal["all", "last"] = setting(
        "all", "Whether to try all levels in turn, or only the last, which helps the most."
    )
    responses: int = setting(1, "Responses sampled per level.", ge=1)
    replace: int = setting(1, "Maximum number of a group's incorrect responses that correct hinted ones replace.", ge=1)
    plain_prompt: bool = setting(
        False, "Whether to train the replacements as answers to the prompt without the hint (EGSR)."
    )


@dataclass
class Climb:
    """A group without a correct response and the hint levels that it has tried."""

    group: Group
    levels: Sequence[str]
    prompts: list[Prompt] = field(default_factory=list)


class ScafGrpo(Mechanism):
    """Poses a query that no response of its group solved with hints, level by level, until one helps.

    The correct responses of that level replace `replace` incorrect ones of the group before advantages are taken, and
    the other hinted responses are not trained on. A level is a round of rollouts: at most eight are asked.

    What replaces an incorrect response stays behind its hinted prompt, and is trained on as what it is. With
    `plain_prompt` its tokens are put behind the group's own prompt: they then take no importance weight, and their old
    log-probs are those of this step's policy, so that the ratio begins at 1. Multi-turn answers whose later turns
    repeat the prompt (`rl_module.earlier_turns: rendered`) are left as they are.

    Source: Scaf-GRPO, the authors' code: 50 steps of warm-up, four levels of knowledge and four of a partial solution,
    one response each, one replaced. There all levels are asked and the least that helped is taken; ours stops there,
    which samples less. EGSR, arXiv 2505.08364, abstract: an expert's solution alone, `levels: last`, and
    `plain_prompt`.
    """

    section = "scaf_grpo"
    settings_class = ScafGrpoSettings
    tags = {"scaf_grpo/unsolved": 0.0, "scaf_grpo/solved": 0.0, "scaf_grpo/level": 0.0, "scaf_grpo/replaced": 0.0}
    settings: ScafGrpoSettings

    def __init__(self, settings: ScafGrpoSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.seen = 0  # of the running step: groups, then those without a correct response
        self.groups: Sequence[Group] = ()
        self.climbs: list[Climb] = []
        if not any([self.levels(uid) for uid in services.uids]):
            raise ConfigError(f"environment.columns.{HINTS}: no query has a hint; fix: name the data's column of hints")

    def levels(self, uid: str) -> Sequence[str]:
        """Return a query's hints, the least help first.

        Raises:
            ConfigError: they are no texts.
        """
        found = self.services.query(uid).info.get(HINTS) or ()
        levels = [found] if isinstance(found, str) else found
        if not isinstance(levels, list | tuple) or not all(isinstance(each, str) for each in levels):
            raise ConfigError(
                f"environment.columns.{HINTS}: that of query {uid} is {found!r}; fix: make it a text or a list of texts"
            )
        return levels[-1:] if self.settings.levels == "last" else levels

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Return the next level's prompt for each plain group that has no correct response yet."""
        if round == 1:
            self.seen, self.climbs = 0, []
        self.groups = groups
        if self.services.step < self.settings.warmup:
            return []
        for group in groups[self.seen :]:
            if group.prompt.context == Context.PLAIN and not group.any_correct:
                self.climbs.append(Climb(group, self.levels(group.prompt.uid)))
        self.seen, prompts = len(groups), []
        for climb in self.climbs:
            if len(climb.prompts) < len(climb.levels) and not self.answers(climb):
                hint = climb.levels[len(climb.prompts)]
                prompts.append(Prompt(climb.group.prompt.uid, HINTED, hint=hint, size=self.settings.responses))
                climb.prompts.append(prompts[-1])
        return prompts

    def answers(self, climb: Climb) -> list[Sample]:
        """Return the correct responses of the level that helped."""
        own = {id(prompt) for prompt in climb.prompts}
        return [s for group in self.groups if id(group.prompt) in own for s in group.fresh if s.rollout.correct]

    def is_informative(self, group: Group) -> bool:
        """Return whether the group will get a correct response from a hint."""
        return any(climb.group is group and self.answers(climb) for climb in self.climbs)

    def compose(self, batch: StepBatch) -> None:
        """Replace incorrect responses by correct hinted ones; leave all else with a hint out of training."""
        rng, trained = self.services.rng(self.section, batch.step), {id(group) for group in batch.groups}
        borrowed: list[Sample] = []
        for climb in self.climbs:
            if id(climb.group) in trained:
                borrowed += self.borrow(climb.group, self.answers(climb), rng)
        if moved := [sample for sample in borrowed if sample.replayed]:
            self.services.score(moved)
        batch.leave_out(HINTED)
        solved = [len(climb.prompts) for climb in self.climbs if self.answers(climb)]
        self.metrics |= {
            "scaf_grpo/unsolved": float(len(self.climbs)),
            "scaf_grpo/solved": float(len(solved)),
            "scaf_grpo/level": float(np.mean(solved)) if solved else 0.0,
            "scaf_grpo/replaced": float(len(borrowed)),
        }
        self.climbs, self.groups = [], ()

    def borrow(self, group: Group, answers: Sequence[Sample], rng: np.random.Generator) -> list[Sample]:
        """Replace incorrect responses of a group, except at least one; return the replacements."""
        wrong = [place for place, sample in enumerate(group.samples) if not sample.replayed]
        count = max(0, min(self.settings.replace, len(wrong) - 1))
        borrowed = []
        for place, answer in zip(rng.permutation(wrong)[:count], answers, strict=False):
            group.left_out.append(group.samples[place])
            group.samples[place] = self.borrowed(answer, group)
            borrowed.append(group.samples[place])
        return borrowed

    def borrowed(self, answer: Sample, group: Group) -> Sample:
        """Return a hinted response as a member of a group."""
        own = group.own_rollout if self.settings.plain_prompt else None
        if own is None or NEW_CONTEXT in answer.rollout.tokens:
            return replace(answer, borrowed=True)
        plain = with_prompt_of(answer, own)
        return replace(plain, length_penalty=answer.length_penalty, replayed=True, borrowed=True)
