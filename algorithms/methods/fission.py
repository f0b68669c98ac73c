"""Fission-GRPO: make a prompt from a failed trajectory of this step and the environment's feedback on it."""

from collections.abc import Sequence

from algorithms.grpo.mechanism import Group, Mechanism, Prompt, Services, Settings, StepBatch, setting
from algorithms.grpo.prompt_share import draw_at_most, most_in_share
from algorithms.rollout.types import Context, Rollout

FISSION = "fission"
MAX_ATTEMPT_TOKENS, MAX_FEEDBACK_TOKENS = 2048, 512  # of a quoted trajectory, head and tail kept, and of the feedback


class FissionSettings(Settings):
    """Train on recovering from this step's failures. The numbers are ours: the authors' were not found."""

    enabled: bool = setting(True, "Whether to make prompts from failures.")
    failures: int = setting(1, "Maximum number of failures per group that become prompts, drawn uniformly.", ge=1)
    max_share: float = setting(0.5, "Maximum share of a step's prompts that are such prompts; 1: no limit.", ge=0, le=1)


class Fission(Mechanism):
    """Rolls out `[x; τ; f]` once more: the query, a failed response of this step, and the environment's feedback to it.

    Each such prompt has a group of its own, whose rewards are normalized alone. τ is the whole response, of several
    turns all of them, token for token; with `rl_module.earlier_turns: rendered` its last turn alone. f is the feedback
    of its last turn (`Turn.feedback`), and becomes the user turn; without one that turn is what the environment says
    after a failed attempt. There is one round: what fails again is not split again. The environment begins anew behind
    the trajectory.

    Source: Fission-GRPO, arXiv 2601.15625, through notes; the authors' repository has no code. There an error simulator
    that was fine-tuned for it writes f, every failure is split, and prompts wait in a buffer, last in, first out, so
    that fresh ones come first. Ours: the environment writes f, the limits, and that prompts are answered in the step of
    their failure or never, so that there is nothing to buffer. The rewards' schedule is the environment's business.
    """

    section = "fission"
    settings_class = FissionSettings
    tags = {"fission/prompts": 0.0, "fission/feedback": 0.0, "fission/correct": 0.0}
    settings: FissionSettings

    def __init__(self, settings: FissionSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.truncator = services.truncator(MAX_ATTEMPT_TOKENS)
        self.seen = self.plain = self.split = 0  # of the running step: groups, plain ones of these, prompts made

    @classmethod
    def extra_prompts(cls, settings: FissionSettings, queries: int) -> int:
        """Count the fission prompts of a step at most."""
        return min(queries * settings.failures, most_in_share(settings.max_share, queries))

    @classmethod
    def quoted_tokens(cls, settings: FissionSettings, response_limit: int) -> int:
        """Count the tokens of a quoted trajectory and of the feedback to it at most."""
        return min(response_limit, MAX_ATTEMPT_TOKENS) + MAX_FEEDBACK_TOKENS

    def follow_up(self, groups: Sequence[Group], round: int) -> list[Prompt]:
        """Return a prompt for failures of the plain groups that came in since the last round."""
        if round == 1:
            self.seen = self.plain = self.split = 0
        new = [group for group in groups[self.seen :] if group.prompt.context == Context.PLAIN]
        self.seen, self.plain = len(groups), self.plain + len(new)
        rng, failed = self.services.rng(self.section, self.services.step, round), []
        for group in new:
            failures = [sample.rollout for sample in group.samples if not sample.rollout.correct]
            failed += draw_at_most(failures, self.settings.failures, rng)
        allowed = most_in_share(self.settings.max_share, self.plain) - self.split
        prompts = [self._prompt(rollout) for rollout in draw_at_most(failed, allowed, rng)]
        self.split += len(prompts)
        self.metrics["fission/prompts"] += len(prompts)
        self.metrics["fission/feedback"] += sum(bool(prompt.feedback) for prompt in prompts)
        return prompts

    def update_history(self, batch: StepBatch) -> None:
        """Report how often the policy recovers."""
        groups = [group for group in batch.rolled_out if group.prompt.context == FISSION]
        correct = [sample.rollout.correct for group in groups for sample in group.fresh]
        self.metrics["fission/correct"] = sum(correct) / max(1, len(correct))

    def _prompt(self, rollout: Rollout) -> Prompt:
        said = rollout.turns[-1].feedback if rollout.turns else ""
        feedback = self.truncator.shorten(said, MAX_FEEDBACK_TOKENS)
        text = self.truncator.text(rollout.tokens, rollout.loss_mask)
        attempt = self.truncator.attempt(rollout.tokens, rollout.loss_mask, text)
        attempt = self.truncator.truncate(attempt, feedback)
        return Prompt(rollout.uid, FISSION, attempt=attempt, feedback=feedback)
