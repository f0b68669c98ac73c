"""ACE: give a larger negative advantage to incorrect responses in which the policy has become more confident."""

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Services, Settings, StepBatch, setting
from algorithms.methods.logprob_gaps import bounded, per_token


class ACESettings(Settings):
    """Scale negative advantages by the shift of confidence. Coefficient, cap and normalization are ours."""

    enabled: bool = setting(True, "Whether to scale advantages.")
    coefficient: float = setting(1.0, "Weight of the shift's softplus, which is added to the factor 1 (α).", gt=0)
    per_token: bool = setting(False, "Whether the shift is the mean over a response's tokens instead of their sum.")
    cap: float | None = setting(5.0, "Cap of the shift in nats, in both directions; null: no cap.", gt=0)


class ACE(Mechanism):
    """Multiplies the negative advantages of incorrect responses by `1 + α · softplus(c_i)`.

    `c_i = log π(y_i|x) - log π_ref(y_i|x)`, of the policy at the step's start and the model that the run began with:
    how much more confident the policy has become of this very response. In the first step c is 0, and the factor
    `1 + α·ln 2` for all. Replayed responses, whose stored log-probs are those of another step, keep their advantages.

    Source: arXiv 2602.21420, its abstract (c_i, "dynamically modulate negative advantages"); that the factor is this
    one and meets incorrect responses alone, from a summary. Ours: α, the cap (c of a whole response can be tens) and
    the mean over tokens as a choice.
    """

    section = "ace"
    settings_class = ACESettings
    tags = {"ace/shift": 0.0, "ace/factor": 1.0, "ace/overconfident": 0.0}
    uses_reference = True
    settings: ACESettings

    def __init__(self, settings: ACESettings, services: Services) -> None:
        super().__init__(settings, services)
        self.factors: dict[int, np.float32] = {}  # of the step's incorrect fresh samples, by their id

    def before_advantages(self, batch: StepBatch) -> None:
        """Measure the shift of the step's incorrect responses."""
        samples = [sample for group in batch.groups for sample in group.trained if not sample.rollout.correct]
        self.services.measure(samples)
        first = self.services.score_under(samples, "reference")
        reduce = np.mean if self.settings.per_token else np.sum
        gaps = (sample.old_logprobs - theirs for sample, theirs in zip(samples, first, strict=True))
        shifts = np.array([reduce(gap.astype(np.float64)) for gap in gaps])
        factors = 1.0 + self.settings.coefficient * np.logaddexp(0.0, bounded(shifts, self.settings.cap))
        self.factors = {id(sample): np.float32(factor) for sample, factor in zip(samples, factors, strict=True)}
        if samples:
            self.metrics["ace/shift"], self.metrics["ace/factor"] = float(shifts.mean()), float(factors.mean())
            self.metrics["ace/overconfident"] = float((shifts > 0).mean())

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Multiply the negative advantages."""
        parts = zip(group.samples, per_token(advantages, group.samples), strict=True)
        return [np.where(own < 0, own * self.factors.get(id(sample), np.float32(1.0)), own) for sample, own in parts]
