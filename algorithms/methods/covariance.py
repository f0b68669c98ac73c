"""Clip-Cov and KL-Cov: hold back the few tokens whose updates lower the policy's entropy most."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Mechanism, Sample, Settings, StepBatch, setting, term

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


class CovarianceSettings(Settings):
    """Hold back the tokens whose log-prob and advantage covary the most."""

    enabled: bool = setting(True, "Whether to hold tokens back.")
    mode: Literal["clip", "kl"] = setting(
        "clip",
        "`clip`: random tokens between `low` and `high` lose their advantage. `kl`: the tokens with the largest "
        "covariance are penalized by their distance from the old policy.",
    )
    share: float = setting(2e-4, "Share of a step's tokens to choose; at least one token.", gt=0, lt=1)
    low: float = setting(1.0, "With `clip`, the minimum covariance of a token that may be chosen.")
    high: float = setting(5.0, "With `clip`, the maximum.")
    coefficient: float = setting(1.0, "With `kl`, the penalty per nat of distance.", gt=0)


class Covariance(Mechanism):
    """A token's covariance is `(A - mean A) · (log π - mean log π)`, the means over the step's fresh tokens that train.

    `clip` (Clip-Cov): of the tokens between `low` and `high`, `share` of the step's tokens, drawn at random, get no
    advantage. `kl` (KL-Cov): the `share` with the largest add `coefficient · |log π - log π_old|` to the loss. Its
    gradient is 0 where the policy has not moved: with a single optimizer step per training step it does nothing.

    The authors' code takes log π and the means in each micro-batch, at each optimizer step. Here they are those of the
    whole step under the policy that sampled (the engine's where nothing else is measured), so that the choice does not
    depend on how rows are cut. Replayed tokens are left alone.

    Source: arXiv 2505.22617; the authors' code.
    """

    section = "covariance"
    settings_class = CovarianceSettings
    tags = {"covariance/mean": 0.0, "covariance/tokens": 0.0}
    settings: CovarianceSettings

    @classmethod
    def check(cls, settings: CovarianceSettings, config: "BaseConfig") -> None:
        """Raise ConfigError where a token without an advantage is moved by its neighbors', in the response's ratio."""
        from algorithms.losses.base import load_objective  # with torch, which the rest here does without

        training = config.training_settings
        shared = training.ratio_level == "sequence" or not load_objective(training.objective)().token_local
        if settings.enabled and settings.mode == "clip" and shared:
            name = "ratio_level" if training.ratio_level == "sequence" else "objective"
            raise ConfigError(
                f"covariance.mode: 'clip' takes a token's own advantage, and training.{name}="
                f"{getattr(training, name)} moves all tokens of a response by one ratio; fix: covariance.mode=kl"
            )

    def before_update(self, batch: StepBatch) -> None:
        """Hold back tokens of the step's groups: advantages are final, weights have not changed."""
        trained = (sample for group in batch.groups for sample in group.trained)
        samples = [one for one in trained if one.rollout.response_length and one.is_counted and not one.masked]
        if not samples:
            return
        lengths = [sample.rollout.response_length for sample in samples]
        advantages = np.concatenate([np.broadcast_to(s.advantages, n) for s, n in zip(samples, lengths, strict=True)])
        logprobs = np.concatenate([_logprobs(sample) for sample in samples]).astype(np.float64)
        covariances = (advantages - advantages.mean()) * (logprobs - logprobs.mean())
        chosen = np.zeros(len(covariances), bool)
        chosen[self._choose(covariances, batch.step)] = True
        for sample, own in zip(samples, np.split(chosen, np.cumsum(lengths)[:-1]), strict=True):
            if own.any():
                self._hold_back(sample, own)
        self.metrics["covariance/mean"] = float(covariances.mean())
        self.metrics["covariance/tokens"] = float(chosen.sum())

    def _choose(self, covariances: np.ndarray, step: int) -> np.ndarray:
        """Return the places of the tokens to hold back."""
        count = max(1, int(self.settings.share * len(covariances)))
        if self.settings.mode == "kl":
            return np.argsort(-covariances, kind="stable")[:count]
        candidates = np.flatnonzero((covariances > self.settings.low) & (covariances < self.settings.high))
        return self.services.rng(self.section, step).permutation(candidates)[:count]

    def _hold_back(self, sample: Sample, chosen: np.ndarray) -> None:
        if self.settings.mode == "clip":
            sample.advantages = np.where(chosen, 0.0, sample.advantages).astype(np.float32)
        else:
            sample.terms[term("anchor")] = (self.settings.coefficient * chosen).astype(np.float32)


def _logprobs(sample: Sample) -> np.ndarray:
    return sample.rollout.sampling_logprobs if sample.old_logprobs is None else sample.old_logprobs
