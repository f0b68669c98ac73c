"""An entropy bonus in the loss whose coefficient follows the policy's entropy."""

from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Mechanism, Services, Settings, State, StepBatch, setting, term


class EntropyBonusSettings(Settings):
    """Keep the policy's entropy from falling below a target."""

    enabled: bool = setting(True, "Whether to add the bonus.")
    target: float | None = setting(
        0.2,
        "Entropy, in nats per token, below which the bonus is paid and its weight grows; null: the weight stays "
        "constant.",
        gt=0,
    )
    coefficient: float = setting(0.0, "Weight of the bonus in the first step.", ge=0)
    step: float = setting(1e-4, "How much a step adds to the weight below the target, and subtracts above it.", ge=0)
    most: float = setting(5e-3, "Maximum weight.", gt=0)


class EntropyBonus(Mechanism):
    """Subtracts `c · H` from the loss of each fresh token, with H the entropy of the whole next-token distribution.

    After each step `c` grows by `step` if the step's mean entropy was below `target`, and shrinks by it otherwise,
    within 0 and `most`. A step after one that was not below the target pays nothing, whatever `c` is. The tokens'
    weights are those of the loss. Replayed tokens get none: their contexts are not the policy's own.

    Source: Skywork-OR1, arXiv 2505.22312; the authors' code and script (target 0.2, step 1e-4, most 5e-3).
    """

    section = "entropy_bonus"
    settings_class = EntropyBonusSettings
    tags = {"entropy_bonus/coefficient": 0.0}
    settings: EntropyBonusSettings

    def __init__(self, settings: EntropyBonusSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.coefficient, self.below = settings.coefficient, True

    def before_update(self, batch: StepBatch) -> None:
        """Give the step's fresh samples the coefficient."""
        applied = self.coefficient if self.below else 0.0
        for sample in (sample for group in batch.groups for sample in group.trained if applied):
            sample.terms[term("entropy")] = applied
        self.metrics["entropy_bonus/coefficient"] = applied

    def update_history(self, batch: StepBatch) -> None:
        """Move the coefficient by the step's entropy, if it has been measured."""
        if self.settings.target is None or not any(group.trained for group in batch.groups):
            return
        self.below = bool(batch.record["policy/entropy"] < self.settings.target)
        moved = self.coefficient + (self.settings.step if self.below else -self.settings.step)
        self.coefficient = min(max(moved, 0.0), self.settings.most)

    def state(self) -> State:
        """Return the coefficient, and whether the bonus is paid."""
        return {}, {"coefficient": self.coefficient, "below": self.below}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Continue with them."""
        self.coefficient = state.get("coefficient", self.settings.coefficient)
        self.below = state.get("below", True)
