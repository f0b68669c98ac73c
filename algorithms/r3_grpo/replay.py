"""CCR, cross-context replay: add stored responses of the opposite outcome to a group all correct or all incorrect."""

import sys
from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Group, Mechanism, Sample, Settings, StepBatch, setting, term
from algorithms.grpo.types import to_sample
from algorithms.history.entry import ReplayEntry
from algorithms.history.store import ReplayHistory

if TYPE_CHECKING:  # loads Ray
    from algorithms.config.base import BaseConfig

__all__ = ["Replay", "ReplayEntry", "ReplayHistory", "ReplaySettings"]


class ReplaySettings(Settings):
    """Cross-context replay (CCR): add stored responses of the opposite outcome to a homogeneous group."""

    enabled: bool = setting(True, "Whether to replay.", hparam=True)
    k: int = setting(1, "Maximum number of samples to add to a homogeneous group.", ge=0, hparam=True)
    contexts: Literal["same", "any"] = setting(
        "same",
        "Whether a group takes stored responses from its own context only (plain, with what reflection distilled, or "
        "reflection), or from any context of the query, each under its own prompt (the paper).",
        hparam=True,
    )
    ratio: Literal["stored", "recomputed", "probability"] = setting(
        "stored",
        "Old log-probs of replayed tokens: those from when they were sampled, those of this step's policy, or 0, "
        "which makes the ratio the policy's probability (LUFFY).",
        hparam=True,
    )
    groups: Literal["homogeneous", "all"] = setting(
        "homogeneous", "Whether to add samples to homogeneous groups only, or to all groups (RLEP).", hparam=True
    )
    outcome: Literal["opposite", "correct"] = setting(
        "opposite", "Whether to add the opposite outcome, or correct responses only (RLEP).", hparam=True
    )
    draw: Literal["uniform", "lowest_entropy"] = setting(
        "uniform",
        "How to choose stored responses: uniformly, or those whose tokens have the lowest mean entropy under this "
        "step's policy (ExGRPO), for which all of them are scored.",
        hparam=True,
    )
    shaping: float = setting(
        0.0,
        "γ of the ratio `r / (r + γ)` that replaces the clipped objective for replayed tokens (LUFFY, 0.1 there); 0: "
        "off.",
        hparam=True,
        ge=0,
    )
    dual_clip: float | None = setting(
        3.0,
        "Bound on the ratio of replayed tokens whose advantage is negative, for objectives that take "
        "`training.dual_clip`: a stored failure that has become likelier would count with its whole ratio; null: use "
        "that one.",
        gt=1,
        hparam=True,
    )
    std_scale: float = setting(
        1.0, "Factor on the standard deviation of a mixed group (α of Eq. 3).", gt=0, hparam=True
    )
    scale_rows: Literal["all", "replayed"] = setting(
        "all", "Which rows of a mixed group `std_scale` applies to: all (Eq. 3), or the replayed ones."
    )


class Replay(Mechanism):
    """Mixes opposite outcomes into homogeneous groups, and scales their Eq. 3.

    As settings it has its relatives, whose successes come from the history here, too:

    - RLEP (arXiv 2507.07451, authors' code): M stored successes join each group, `G' = G + M`, under recomputed
      log-probs.
    - LUFFY (arXiv 2504.14945, authors' code): `f(r) = r / (r + γ)` in place of the clip; r is the policy's probability,
      as the other model's counts as 1.
    - ExGRPO (arXiv 2510.02245, authors' code): the stored success of the lowest entropy, f of the stored ratio.
    """

    section = "replay"
    settings_class = ReplaySettings
    tags = {"replay/added": 0.0, "replay/added_correct": 0.0}
    uses_history = True
    settings: ReplaySettings
    added: Set[int] = frozenset()  # the ids of what it has added in the running step

    @classmethod
    def check(cls, settings: ReplaySettings, config: "BaseConfig") -> None:
        """Raise ConfigError for an α whose deviation divides nothing, and for an undefined outcome."""
        if settings.enabled and settings.groups == "all" and settings.outcome == "opposite":
            raise ConfigError(
                "replay.outcome: opposite is not defined for a mixed group, which replay.groups=all adds to; "
                "fix: replay.outcome=correct"
            )
        from algorithms.grpo.registry import advantage_estimator  # loads Ray, which a configuration has loaded

        estimator, name = advantage_estimator(config.training_settings), config.training_settings.advantage
        if settings.enabled and settings.std_scale != 1.0 and not estimator.divides_by_std:
            raise ConfigError(
                f"replay.std_scale: {settings.std_scale:g} scales a standard deviation that training.advantage="
                f"{name} does not divide by; fix: replay.std_scale=1"
            )

    def is_informative(self, group: Group) -> bool:
        """Return whether replay will complete the group."""
        opposite = self.settings.outcome == "opposite" or not group.any_correct
        return opposite and bool(self._recall(group, np.random.default_rng(0)))

    def compose(self, batch: StepBatch) -> None:
        """Add opposite outcomes of the same query to homogeneous groups."""
        rng = self.services.rng(self.section, batch.step)
        replayed = []
        for index, group in enumerate(batch.groups):
            recalled = [to_sample(entry, index) for entry in self._recall(group, rng)]
            if self.settings.draw == "lowest_entropy":
                recalled = self._surest(recalled)
            group.samples += recalled
            replayed += recalled
        if replayed and self.settings.ratio == "recomputed":
            self.services.score(replayed)
        self.added = {id(sample) for sample in replayed}
        for sample in replayed:
            if self.settings.shaping:
                sample.terms = {term("shaped", gamma=self.settings.shaping): 1.0}
            elif self.settings.dual_clip:
                sample.terms = {term("policy", dual_clip=self.settings.dual_clip): 1.0}
            if self.settings.ratio == "probability":
                sample.old_logprobs = np.zeros(sample.rollout.response_length, np.float32)

    def normalize(self, group: Group) -> None:
        """Scale the deviation of mixed groups by the α of Eq. 3, and count what was added to those that are left."""
        added = [sample.rollout.correct for sample in group.samples if id(sample) in self.added]
        self.metrics["replay/added"] += len(added)
        self.metrics["replay/added_correct"] += sum(added)
        replayed = np.array([sample.replayed for sample in group.samples])
        if replayed.any():
            chosen = replayed | (self.settings.scale_rows == "all")
            group.std_scale = np.where(chosen, self.settings.std_scale, group.std_scale)

    def _recall(self, group: Group, rng: np.random.Generator) -> list[ReplayEntry]:
        """Draw what the history has for a group; for `lowest_entropy` all that it has."""
        only_correct, uniform = self.settings.outcome == "correct", self.settings.draw == "uniform"
        lacks = group.homogeneous and not (only_correct and group.any_correct)
        if not group.is_of_data or (self.settings.groups == "homogeneous" and not lacks):
            return []
        return self.services.history.sample_opposite_outcomes(
            group.prompt.uid,
            correct_group=group.any_correct and not only_correct,
            k=self.settings.k if uniform or not self.settings.k else sys.maxsize,
            contexts=self.settings.contexts,
            context=group.prompt.context,
            rng=rng,
        )

    def _surest(self, recalled: list[Sample]) -> list[Sample]:
        """Return the k samples whose tokens have the lowest mean entropy under the policy as it stands."""
        if len(recalled) <= self.settings.k:
            return recalled
        scored = [replace(sample) for sample in recalled]
        self.services.score(scored, entropy=True)
        entropies = [np.asarray(sample.entropies) for sample in scored]
        means = [float(each.mean()) if each.size else 0.0 for each in entropies]
        return [recalled[place] for place in np.argsort(means, kind="stable")[: self.settings.k]]
