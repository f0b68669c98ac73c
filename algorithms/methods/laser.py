"""LaSeR: the log-prob of one unused token right after a response learns whether the response is correct."""

from dataclasses import replace
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Sample, Services, Settings, State, StepBatch, setting
from algorithms.models.unused_token import unused_token
from algorithms.rollout.conversation import extended, is_finished
from algorithms.utils.statistics import area_under_curve


class LaserSettings(Settings):
    """Learn a confidence in each response: a reward that the policy gives itself with one more token."""

    enabled: bool = setting(True, "Whether to learn the confidence.")
    token: int | str | None = setting(
        None,
        "The token after a response: an id, or its text. null: a reserved token, a row of the output head that the "
        "tokenizer does not use, or a byte that never occurs in text.",
    )
    beta: float = setting(0.1, "Confidence per nat of the token's log-prob (β).", gt=0)
    reference: float | None = setting(
        None,
        "The token's log-prob, times the temperature, at which the confidence is 0 (c_ref). null: the mean over the "
        "finished responses of the first step that has any.",
    )
    coefficient: float = setting(0.1, "Weight of the squared error in the loss.", ge=0)
    start: int = setting(0, "Steps before the squared error joins the loss.", ge=0)
    warmup: int = setting(200, "Steps before confidences join the advantages.", ge=0)
    share: float = setting(0.1, "Share of the confidences in the advantages after that.", ge=0, le=1)
    min_std: float = setting(
        0.1, "Minimum standard deviation of a group's confidences; below it they do not join.", ge=0
    )


class Laser(Mechanism):
    """`r_s = β (T log π(z_c | x, y, EOS) - c_ref)` learns the outcome r, which is 1 or 0.

    The loss gets `0.1 · mean[w (r_s - r)²]` over the step's fresh finished responses; w = n / 2n_r for n_r of n with
    the outcome r. After `warmup` steps `A <- 0.9 A + 0.1 · standardized clip(r_s, 0, 1)` of the group's finished
    responses, if their deviation is above 0.1. Others keep their advantage, and so do replayed ones.

    The gradient is that of rows with z_c as the only trained token, weighed by the error's slope at the step's start:
    exact with one optimizer step a training step, of first order with more. A step costs one more forward pass to know
    r_s, and one more forward and backward, over the responses; the authors get both from passes that are there. A
    response after which the context has no room for a token is left out. Of a conversation whose turns are rendered
    anew, z_c stands behind the last turn, in its context.

    Source: arXiv 2510.14943; the authors' code, which begins with the error after 200 steps (`start`), has -23 as
    c_ref for Qwen2.5-7B and `<|vision_start|>` as z_c. Ours: c_ref measured in the first step, the mean over finished
    responses alone, and what happens in groups with unfinished ones.
    """

    section = "laser"
    settings_class = LaserSettings
    tags = {
        "laser/loss": 0.0,
        "laser/auc": 0.5,
        "laser/correct": 0.0,
        "laser/incorrect": 0.0,
        "laser/reference": 0.0,
        "laser/mixed": 0.0,
    }
    conflicts = {"rorecomp": "confidences would be learned on responses that it holds back in its buffer"}
    settings: LaserSettings

    def __init__(self, settings: LaserSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.token = unused_token(services.tokenizer, services.vocabulary, settings.token, "laser.token")
        self.reference = settings.reference  # c_ref; None until it is measured
        self.batch = StepBatch(0)
        self.asked: dict[int, tuple[Sample, float]] | None = None  # z_c's row and T log π by id of the running step's

    def compose(self, batch: StepBatch) -> None:
        """Start a new step."""
        self.batch, self.asked = batch, None

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Mix in the group's confidences."""
        if self.services.step < self.settings.warmup or not self.settings.share:
            return advantages
        known = self._confidences(self.batch)
        found = np.array([known.get(id(sample), np.nan) for sample in group.samples]).clip(0.0, 1.0)
        there = ~np.isnan(found)
        if not there.any() or found[there].std() <= self.settings.min_std:
            return advantages
        scores = (found - found[there].mean()) / (found[there].std() + 1e-6)
        self.metrics["laser/mixed"] += 1.0
        share = self.settings.share
        mixed: Any = [
            (1 - share) * advantage + share * score if own else advantage
            for advantage, score, own in zip(advantages, scores, there, strict=True)
        ]
        return mixed if isinstance(advantages, list) else np.array(mixed)

    def auxiliary(self, batch: StepBatch) -> list[Sample]:
        """Return z_c after each finished response, weighted by the slope of the squared error."""
        known, settings = self._confidences(batch), self.settings
        samples = [s for group in batch.groups for s in group.fresh if id(s) in known]
        if not samples:
            return []
        confidences = np.array([known[id(sample)] for sample in samples])
        outcomes = np.array([float(sample.rollout.correct) for sample in samples])
        weights = balance(outcomes)
        errors = confidences - outcomes
        self.metrics["laser/loss"] = float((weights * errors**2).mean())
        self.metrics["laser/auc"] = area_under_curve(confidences, outcomes > 0)
        for name, own in (("correct", outcomes > 0), ("incorrect", outcomes == 0)):
            self.metrics[f"laser/{name}"] = float(confidences[own].mean()) if own.any() else 0.0
        if self.services.step < settings.start or not settings.coefficient:
            return []
        slopes = settings.coefficient * 2 * weights * errors * settings.beta * self._temperature
        asked = self.asked or {}
        rows = [asked[id(sample)][0] for sample in samples]
        return [replace(row, advantages=-float(slope)) for row, slope in zip(rows, slopes, strict=True)]

    def update_history(self, batch: StepBatch) -> None:
        """Keep c_ref once it is known."""
        self.reference = self._reference()
        self.metrics["laser/reference"] = 0.0 if self.reference is None else self.reference
        self.batch, self.asked = StepBatch(0), None  # else the step would live on through the next one's rollouts

    def state(self) -> State:
        """Return c_ref."""
        return {}, {"reference": self.reference}

    def restore(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Put it back, unless the settings have one."""
        if self.settings.reference is None:
            self.reference = state.get("reference")

    @property
    def _temperature(self) -> float:
        return float(self.services.config.env_runners_settings.temperature)

    def _confidences(self, batch: StepBatch) -> dict[int, float]:
        """Return r_s of the step's finished responses by the sample's id; the first call measures them."""
        if self.asked is None:
            room = self.services.context
            samples = [s for group in batch.groups for s in group.fresh if is_finished(s.rollout)]
            rows = [Sample(extended(s.rollout, self.token), s.reward, replayed=True) for s in samples]
            fitting = [n for n, row in enumerate(rows) if room is None or len(row.rollout.tokens) <= room]
            self.services.score([rows[n] for n in fitting])
            self.asked = {}
            for n in fitting:
                if (found := rows[n].old_logprobs) is not None and rows[n].is_finite:
                    self.asked[id(samples[n])] = rows[n], self._temperature * float(found[0])
        reference = self._reference() or 0.0
        return {key: self.settings.beta * (value - reference) for key, (_, value) in self.asked.items()}

    def _reference(self) -> float | None:
        """Return c_ref, in the first step that of the step."""
        if self.reference is not None or not self.asked:
            return self.reference
        return float(np.mean([value for _, value in self.asked.values()]))


def balance(outcomes: np.ndarray) -> np.ndarray:
    """Weigh outcomes, float [n] of 1 and 0, so that both kinds have the same total weight: float [n]."""
    correct = outcomes > 0
    counts = np.where(correct, correct.sum(), (~correct).sum())
    return len(outcomes) / (2.0 * np.maximum(1, counts))
