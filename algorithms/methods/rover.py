"""ROVER: regress each token's log-ratio on the value of a uniformly random policy, in place of a policy gradient."""

import numpy as np

from algorithms.grpo.mechanism import Mechanism, Settings, StepBatch, setting, term
from algorithms.losses.term import POLICY


class RoverSettings(Settings):
    """Regress log-ratios on targets instead of maximizing the objective."""

    enabled: bool = setting(True, "Whether to regress.")


class Rover(Mechanism):
    """Replaces the objective of fresh responses by the mean over tokens of `(q - target)²`, see `losses/rover.py`.

    `q = log π - log π_old`; `target = A + V`, V the mean over the vocabulary of `log π - log π_old` at the next token.
    The preset's A is `r - mean`. Replayed responses keep the objective; importance weights do not act on the others.

    Source: arXiv 2509.24981; the authors' code, whose script for mathematics also divides A by the deviation
    (`training.advantage: std`), and samples 8 responses at temperature 0.6.
    """

    section = "rover"
    settings_class = RoverSettings
    tags = {"rover/tokens": 0.0}
    settings: RoverSettings

    def before_update(self, batch: StepBatch) -> None:
        """Measure the vocabulary under the step's first policy, and give fresh samples the regression."""
        samples = [sample for group in batch.groups for sample in group.trained if sample.rollout.response_length]
        found = self.services.score_under(samples, "policy", "vocabulary_logprobs")
        for sample, values in zip(samples, found, strict=True):
            if not np.isfinite(values).all():
                continue  # a policy that overflowed: the update skips the step, whatever the term
            sample.terms.pop(POLICY, None)
            sample.terms[term("rover")] = 1.0
            sample.inputs["old_next_vocabulary_logprobs"] = np.append(values[1:], np.float32(0.0))
        self.metrics["rover/tokens"] = float(sum(sample.rollout.response_length for sample in samples))
