"""SDPO at token level: the policy teaches itself, shown a correct solution or the environment's feedback."""

from dataclasses import replace
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError, shown
from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Sample, Services, Settings, StepBatch, setting
from algorithms.methods.logprob_gaps import bounded, gap_metrics, per_token
from algorithms.rollout.conversation import GAP_TEXT, last_written
from algorithms.rollout.types import NEW_CONTEXT

MAX_SOLUTION_TOKENS = 2048  # the middle of a longer solution is cut out


class SDPOSettings(Settings):
    """Self-distillation: the teacher is the policy itself, shown a solution or the feedback."""

    enabled: bool = setting(True, "Whether to distill.")
    feedback: bool = setting(
        True, "Whether to show the environment's feedback where no other response of the group is correct."
    )
    others: float = setting(
        0.0,
        "Weight of the reward's advantage for responses that have neither; 0: they are not trained on, 1: as in GRPO.",
        ge=0,
    )
    coefficient: float = setting(1.0, "Advantage per nat between teacher and policy.", gt=0)
    cap: float | None = setting(10.0, "Cap of a token's difference, in nats; null: no cap (ours).", gt=0)
    solution_text: str = setting(
        "Here is a correct solution:\n{solution}\n\nSolve the original question correctly.",
        "How to show a solution. One that leaves no room for the response in the model's context is not shown.",
        min_length=1,
    )
    feedback_text: str = setting(
        "About an earlier attempt:\n{feedback}\n\nSolve the original question correctly.",
        "How to show feedback.",
        min_length=1,
    )


class SDPO(Mechanism):
    """Gives each token of a response the advantage `log π(y_t | x, f_i) - log π(y_t | x)` instead of the reward's.

    f_i joins the user turn: another correct response of the group (the next one in order that is not the same text,
    never the response itself), or where there is none the environment's feedback on the response. π is the policy at
    the step's start on both sides. A response without f_i, a replayed one, one of several rendered contexts and one of
    an environment that begins otherwise with each seed keep the reward's advantage times `others`. With `others: 0`
    they are in no part of the loss: it is the mean over what has an f_i.

    Source: the authors' code (lasgroup/SDPO) at token level, α = 1: the policy gradient of the reverse KL. Left out:
    the Jensen-Shannon form over the largest 100 tokens, which is their default, and their moving average of the weights
    as the teacher. Ours: the texts, the cap, and that the policy's own side is measured once per step.
    """

    section = "sdpo"
    settings_class = SDPOSettings
    per_token = True
    tags = {
        "sdpo/solutions": 0.0,
        "sdpo/feedback": 0.0,
        "sdpo/gap": 0.0,
        "sdpo/gap_size": 0.0,
        "sdpo/capped": 0.0,
    }
    settings: SDPOSettings

    def __init__(self, settings: SDPOSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.decode = services.truncator(None).text
        self.gaps: dict[int, np.ndarray] = {}  # of the samples that were shown something, by their id

    @classmethod
    def check(cls, settings: SDPOSettings, config: Any) -> None:
        """Raise ConfigError for a text without a place for the solution or the feedback."""
        for name in ("solution", "feedback"):
            text = getattr(settings, f"{name}_text")
            if f"{{{name}}}" not in text:
                raise ConfigError(f"sdpo.{name}_text: {shown(text)} has no {{{name}}}; fix: write {{{name}}} in it")

    def is_informative(self, group: Group) -> bool:
        """Return whether there is something to show for one of its responses."""
        return any(solution_for(sample, group) or self._feedback(sample) for sample in group.trained)

    def before_advantages(self, batch: StepBatch) -> None:
        """Score the responses after their own prompt, and after the one that shows something."""
        pairs = [(sample, shown) for group in batch.groups for sample, shown in self._shown(group)]
        samples = [sample for sample, _ in pairs]
        self.services.measure(samples)
        found = self.services.score_under([shown for _, shown in pairs], "policy")
        gaps = [theirs - sample.old_logprobs for sample, theirs in zip(samples, found, strict=True)]
        self.gaps = {id(sample): bounded(gap, self.settings.cap) for sample, gap in zip(samples, gaps, strict=True)}
        self.metrics |= gap_metrics(self.section, gaps, self.settings.cap)

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Return the gaps, and for the other responses the reward's advantage times `others`."""
        coefficient, others = np.float32(self.settings.coefficient), np.float32(self.settings.others)
        for sample in group.samples:
            sample.optional |= not others and id(sample) not in self.gaps
        return [
            coefficient * self.gaps[id(sample)] if id(sample) in self.gaps else others * own
            for sample, own in zip(group.samples, per_token(advantages, group.samples), strict=True)
        ]

    def _shown(self, group: Group) -> list[tuple[Sample, Sample]]:
        """Return each response that something can be shown for, and the same response behind that."""
        pairs: list[tuple[Sample, Sample]] = []
        plain = self.services.render(group.prompt, 1)
        for sample in group.trained:
            solution = solution_for(sample, group)
            text = self._text(sample, solution)
            rollout = sample.rollout
            # Other mechanisms may put responses to other prompts into a group, and an environment may begin otherwise.
            other = plain is not None and not np.array_equal(rollout.tokens[: rollout.prompt_length], plain)
            if not text or other or rollout.context != group.prompt.context or NEW_CONTEXT in rollout.tokens:
                continue
            prompt = replace(group.prompt, hint="\n\n".join(filter(None, (group.prompt.hint, text))))
            if (shown := self._behind(prompt, sample)) is not None:
                pairs.append((sample, shown))
                self.metrics["sdpo/solutions" if solution else "sdpo/feedback"] += 1.0
        return pairs

    def _text(self, sample: Sample, solution: Sample | None) -> str:
        """Return what is shown for a response; empty: nothing."""
        if solution is not None:
            return self.settings.solution_text.replace("{solution}", self._written(solution))
        feedback = self._feedback(sample)
        return self.settings.feedback_text.replace("{feedback}", feedback) if feedback else ""

    def _written(self, solution: Sample) -> str:
        """Return the last turn of a solution as text, its middle cut out where it is too long."""
        tokens, last = solution.rollout.tokens, last_written(solution.rollout.loss_mask)
        limit, places = MAX_SOLUTION_TOKENS, np.arange(len(tokens))
        own = (places >= last.start) & (places < last.end)
        if last.end - last.start <= limit:
            return self.decode(tokens, own)
        tail = places >= last.end - limit // 2
        head = places < last.start + limit - limit // 2
        return GAP_TEXT.join(self.decode(tokens, own & part) for part in (head, tail))

    def _feedback(self, sample: Sample) -> str:
        turns = sample.rollout.turns
        return turns[-1].feedback if self.settings.feedback and turns else ""

    def _behind(self, prompt: Prompt, sample: Sample) -> Sample | None:
        """Return a response behind another prompt, without log-probs; None where that cannot be."""
        rollout, start = sample.rollout, sample.rollout.prompt_length
        before = self.services.render(prompt, len(rollout.tokens) - start)
        if before is None:
            return None
        mask = np.concatenate([np.zeros(len(before), bool), rollout.loss_mask[start:]])
        tokens = np.concatenate([before, rollout.tokens[start:]])
        return replace(sample, rollout=replace(rollout, tokens=tokens, loss_mask=mask), old_logprobs=None)


def solution_for(sample: Sample, group: Group) -> Sample | None:
    """Return the next correct response of a group after this one, in a circle, that is not the same text."""
    own = next(place for place, other in enumerate(group.samples) if other is sample)
    circle = [*group.samples[own + 1 :], *group.samples[:own]]
    written = sample.rollout.response_tokens
    different = (one for one in circle if not np.array_equal(one.rollout.response_tokens, written))
    return next((one for one in different if one.rollout.correct), None)
