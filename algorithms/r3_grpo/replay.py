"""CCR, cross-context replay: a group all correct or all incorrect gets the opposite outcome from the history."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.config.plugins import load_plugin
from algorithms.grpo.advantages import ADVANTAGES, AdvantageEstimator
from algorithms.grpo.mechanism import Group, Mechanism, Settings, StepBatch, setting
from algorithms.grpo.types import to_sample
from algorithms.history.entry import ReplayEntry
from algorithms.history.store import ReplayHistory

if TYPE_CHECKING:  # loads Ray
    from algorithms.config.base import BaseConfig

__all__ = ["Replay", "ReplayEntry", "ReplayHistory", "ReplaySettings"]


class ReplaySettings(Settings):
    """Cross-context replay (CCR): a group all correct or all incorrect gets the opposite outcome from history."""

    enabled: bool = setting(True, "Whether to replay.", hparam=True)
    k: int = setting(1, "Samples that are added to a homogeneous group at most.", ge=0, hparam=True)
    contexts: Literal["same", "any"] = setting(
        "same",
        "Whether a group draws on entries of its own context only (plain or reflection) or on any of the "
        "query, each under its own prompt (the paper).",
        hparam=True,
    )
    ratio: Literal["stored", "recomputed"] = setting(
        "stored",
        "Old log-probs of replayed tokens: those of when they were sampled, or of this step's policy.",
        hparam=True,
    )
    std_scale: float = setting(
        1.0, "Factor on the standard deviation of a mixed group (α of Eq. 3).", gt=0, hparam=True
    )
    scale_rows: Literal["all", "replayed"] = setting(
        "all", "Which rows of a mixed group `std_scale` applies to: all (Eq. 3) or the replayed ones."
    )


class Replay(Mechanism):
    """Mixes opposite outcomes into homogeneous groups, and scales their Eq. 3."""

    section = "replay"
    settings_class = ReplaySettings
    tags = {"replay/added": 0.0, "replay/added_correct": 0.0}
    uses_history = True
    settings: ReplaySettings

    @classmethod
    def check(cls, settings: ReplaySettings, config: "BaseConfig") -> None:
        """Raise ConfigError for an α that scales a deviation which nothing divides by."""
        name = config.training_settings.advantage
        estimator = load_plugin("training.advantage", name, AdvantageEstimator, ADVANTAGES)
        if settings.enabled and settings.std_scale != 1.0 and not estimator.divides_by_std:
            raise ConfigError(
                f"replay.std_scale: {settings.std_scale:g} scales a standard deviation that training.advantage="
                f"{name} does not divide by; fix: replay.std_scale=1"
            )

    def is_informative(self, group: Group) -> bool:
        """Return whether replay will complete the group."""
        return bool(self._opposites(group, np.random.default_rng(0)))

    def compose(self, batch: StepBatch) -> None:
        """Add opposite outcomes of the same query to homogeneous groups."""
        rng = self.services.rng(self.section, batch.step)
        replayed = []
        for index, group in enumerate(batch.groups):
            if group.homogeneous:
                recalled = [to_sample(entry, index) for entry in self._opposites(group, rng)]
                group.samples += recalled
                replayed += recalled
        if replayed and self.settings.ratio == "recomputed":
            self.services.score(replayed)
        self.metrics["replay/added"] = float(len(replayed))
        self.metrics["replay/added_correct"] = float(sum(sample.rollout.correct for sample in replayed))

    def normalize(self, group: Group) -> None:
        """Scale the deviation of mixed groups by the α of Eq. 3."""
        replayed = np.array([sample.replayed for sample in group.samples])
        if replayed.any():
            chosen = replayed | (self.settings.scale_rows == "all")
            group.std_scale = np.where(chosen, self.settings.std_scale, group.std_scale)

    def _opposites(self, group: Group, rng: np.random.Generator) -> list[ReplayEntry]:
        """Draw what the history has for a homogeneous group."""
        return self.services.history.sample_opposite_outcomes(
            group.prompt.uid,
            correct_group=group.any_correct,
            k=self.settings.k,
            contexts=self.settings.contexts,
            context=group.prompt.context,
            rng=rng,
        )
