"""PreRL: at first, make incorrect responses less likely in themselves, whatever the prompt."""

from dataclasses import replace

import numpy as np

from algorithms.grpo.advantages import mean_advantages
from algorithms.grpo.mechanism import Mechanism, Sample, Services, Settings, StepBatch, setting
from algorithms.rollout.types import NEW_CONTEXT, Rollout


class PreRLSettings(Settings):
    """Train on incorrect responses without their prompt in the first steps, and on nothing else."""

    enabled: bool = setting(True, "Whether to begin so.")
    steps: int = setting(20, "Steps without prompts; plain training follows. The authors recommend 10 to 25.", ge=0)
    coefficient: float = setting(0.01, "Weight of this loss.", gt=0)


class PreRL(Mechanism):
    """For `steps` steps maximizes `coefficient ·` the mean over tokens of `A·log π(y_t | y_<t)`, of failures alone.

    `A = r - mean` of the group, where that is negative and the response incorrect; y stands behind the first token of
    its own context, without the rest of the prompt. There is no policy loss in these steps; then plain training goes on
    from there (DSRL: dual space, "policy reincarnation"). Later turns of a conversation stay with what stands between
    them.

    Source: arXiv 2604.14142; the authors' code. There the first token is Qwen's `<|im_start|>`, which its template
    begins with, and the ratio to the step's first policy is clipped as in PPO; here rows have the gradient at ratio 1,
    exact with one optimizer step a training step.
    """

    section = "prerl"
    settings_class = PreRLSettings
    tags = {"prerl/responses": 0.0}
    settings: PreRLSettings

    def __init__(self, settings: PreRLSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.rows: list[Sample] = []  # of the running step

    def before_update(self, batch: StepBatch) -> None:
        """Take the step's failures without their prompts, and leave all responses out of the policy loss."""
        self.rows = []
        if batch.step >= self.settings.steps:
            return
        for group in batch.groups:
            rewards = np.array([sample.training_reward for sample in group.samples])
            for sample, advantage in zip(group.samples, mean_advantages(rewards), strict=True):
                if advantage < 0 and not (sample.rollout.correct or sample.replayed or sample.masked):
                    weighed = float(self.settings.coefficient * advantage)
                    self.rows.append(replace(sample, rollout=without_prompt(sample.rollout), advantages=weighed))
                sample.masked = True
        self.metrics["prerl/responses"] = float(len(self.rows))

    def auxiliary(self, batch: StepBatch) -> list[Sample]:
        """Return these failures."""
        return self.rows

    def update_history(self, batch: StepBatch) -> None:
        """Let go of them."""
        self.rows = []


def without_prompt(rollout: Rollout) -> Rollout:
    """Return a rollout whose contexts hold their first token, and what follows from the policy's first one on."""
    parts = np.flatnonzero(np.append(rollout.tokens, NEW_CONTEXT) == NEW_CONTEXT)
    kept = rollout.tokens == NEW_CONTEXT
    for start, end in zip([0, *(parts[:-1] + 1)], parts, strict=True):
        own = np.flatnonzero(rollout.loss_mask[start:end])
        kept[start] = True
        kept[start + own[0] if len(own) else start : end] = True
    return replace(rollout, tokens=rollout.tokens[kept], loss_mask=rollout.loss_mask[kept], turns=())
