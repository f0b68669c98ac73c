"""SvS: the policy writes variations of problems that it solves now and then, and is paid where they are as hard."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Sample, Services, Settings, setting
from algorithms.grpo.prompt_share import draw_at_most
from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Context, Rollout

WRITE, PROBLEM = "svs_write", "svs_problem"  # contexts: of writing a problem, and of answering it
SOURCE, PAID = (0.125, 0.5), (0.125, 0.625)  # accuracies of queries that are varied, and of problems that are paid

INSTRUCTION = """\
Below are a problem and a correct response to it. Write a variation of the problem: other words, another setting or \
another way to ask, with exactly the same final answer. It must be complete without the original, and must not give \
the answer away. Write only the new problem, between <problem> and </problem>.

Problem:
{problem}

Response:
{response}"""


class SvSSettings(Settings):
    """Train on variations that the policy writes of problems it solves now and then."""

    enabled: bool = setting(True, "Whether to have variations written.")
    responses: int = setting(
        1, "Maximum number of a query's correct responses that variations are written from, drawn (ours).", ge=1
    )
    problems: int = setting(4, "Variations written from each; the authors write as many as a group has.", ge=1)


class SvS(Mechanism):
    """Lets the policy vary queries whose accuracy is in 0.125 to 0.5, and trains on both sides of the game.

    From a correct response the policy writes problems with the same answer. Each is answered by a group of its own,
    against the original's answer, and pays its writer 1 where this group's accuracy is in 0.125 to 0.625, else 0. Both
    are trained on beside the originals; groups of one outcome have no gradient, as ever.

    A written problem exists for its step: it travels in `Prompt.problem`, and is in no data. Neither it nor its writing
    is stored in the history or evaluated, and no query sampler learns from it.

    Source: SvS, arXiv 2508.14029, the authors' code. Ours: the words of the instruction, how a problem is marked, that
    copies of the original pay nothing, and how many are written.
    """

    section = "svs"
    settings_class = SvSSettings
    tags = {"svs/written": 0.0, "svs/posed": 0.0, "svs/paid": 0.0}
    conflicts = {
        "arena_rl": "both decide what a response is paid",
        "gdpo": "no reward function judges a written problem",
        "rorecomp": "its buffer would keep written problems for later steps",
    }
    settings: SvSSettings

    def __init__(self, settings: SvSSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.seen = 0  # groups of the running step
        self.writers: dict[int, Sample] = {}  # by the prompt that poses what they wrote

    @classmethod
    def extra_prompts(cls, settings: SvSSettings, queries: int) -> int:
        """Count the prompts of writing and of what is written, at most."""
        return queries * settings.responses * (1 + settings.problems)

    @classmethod
    def quoted_tokens(cls, settings: SvSSettings, response_limit: int) -> int:
        """Count the tokens of the quoted response and the instruction, at most."""
        return response_limit + len(INSTRUCTION)

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Have problems written, then pose them, then pay for them, as the groups come in."""
        if round == 1:
            self.seen, self.writers = 0, {}
        new, prompts = groups[self.seen :], []
        rng = self.services.rng(self.section, self.services.step, round)
        self.seen = len(groups)
        for group in new:
            if group.prompt.context == Context.PLAIN and _within(group, SOURCE):
                prompts += self._to_write(group, rng)
            elif group.prompt.context == WRITE:
                prompts += self._to_pose(group)
            elif group.prompt.context == PROBLEM and _within(group, PAID):
                writer = self.writers[id(group.prompt)]
                writer.rollout = _paid(writer.rollout)
                self.metrics["svs/paid"] += 1.0
        return prompts

    def _to_write(self, group: Group, rng: np.random.Generator) -> list[Prompt]:
        correct = [sample.rollout for sample in group.samples if sample.rollout.correct]
        problem, tokenizer = self.services.query(group.prompt.uid).problem, self.services.tokenizer
        return [
            Prompt(
                group.prompt.uid,
                WRITE,
                problem=INSTRUCTION.format(problem=problem, response=last_text(rollout, tokenizer)),
                judged=False,
                size=self.settings.problems,
            )
            for rollout in draw_at_most(correct, self.settings.responses, rng)
        ]

    def _to_pose(self, group: Group) -> list[Prompt]:
        original, prompts = self.services.query(group.prompt.uid).problem.split(), []
        for sample in group.samples:
            problem = _written(last_text(sample.rollout))
            if problem and problem.split() != original and not sample.rollout.truncated:
                prompts.append(Prompt(group.prompt.uid, PROBLEM, problem=problem))
                self.writers[id(prompts[-1])] = sample
        self.metrics["svs/written"] += len(group.samples)
        self.metrics["svs/posed"] += len(prompts)
        return prompts


def _written(text: str) -> str:
    """Return what stands in the last pair of tags; nothing without one."""
    _, begun, inside = text.rpartition("</problem>")[0].rpartition("<problem>")
    return inside.partition("</problem>")[0].strip() if begun else ""


def _paid(rollout: Rollout) -> Rollout:
    turns = rollout.turns
    last = (replace(turn, correct=True, reward=1.0) for turn in turns[-1:])
    return replace(rollout, correct=True, reward=1.0, turns=(*turns[:-1], *last))


def _within(group: Group, bounds: tuple[float, float]) -> bool:
    accuracy = sum(sample.rollout.correct for sample in group.samples) / len(group.samples)
    return bounds[0] <= accuracy <= bounds[1]
