"""On-policy distillation: a teacher scores each token that the policy wrote."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from algorithms.config.errors import ConfigError
from algorithms.grpo.mechanism import Group, Mechanism, Services, Settings, StepBatch, setting
from algorithms.methods.logprob_gaps import bounded, gap_metrics, per_token


class OPDSettings(Settings):
    """Distill a teacher into the policy on the policy's own responses."""

    enabled: bool = setting(True, "Whether to distill.")
    teacher: Annotated[str, Field(min_length=1)] = setting(
        "embedded:teacher",
        "The teacher: a folder in Hugging Face's format, a model's id on the Hub, or `embedded:teacher`, which "
        "solves the quickstart's problems. It must use the policy's tokens; learners hold it beside the policy.",
    )
    teacher_revision: str | None = setting(
        None, "Branch, tag or commit of a teacher on the Hub; null: its main branch."
    )
    coefficient: float = setting(1.0, "Advantage per nat between teacher and policy.", gt=0)
    reward: float = setting(
        0.0, "Weight of the reward's advantage, added to the teacher's; 0: the teacher alone.", ge=0
    )
    cap: float | None = setting(10.0, "Cap of a token's difference, in nats; null: no cap (ours).", gt=0)


class OPD(Mechanism):
    """Gives each token that the policy wrote the advantage `coefficient · (log π_T - log π) + reward · A`.

    π_T is a frozen teacher behind the same tokens, π the policy at the step's start, A what the estimator gave. The
    mean of the first part over the policy's own samples is -KL(π ‖ π_T): its policy gradient lowers the reverse KL,
    token by token. Replayed responses are not the policy's own samples, and keep `reward · A` alone; with `reward: 0`
    they are in no part of the loss.

    Source: the reverse-KL form of on-policy distillation, general knowledge of the field (arXiv 2306.13649), and the
    abstract of VLA-OPD: "dense, token-level supervision on the student's self-generated trajectories". Ours: the
    mixture with the reward, and the cap.
    """

    section = "opd"
    settings_class = OPDSettings
    per_token = True
    tags = {"opd/gap": 0.0, "opd/gap_size": 0.0, "opd/capped": 0.0}
    uses_teacher = True
    settings: OPDSettings

    @classmethod
    def check(cls, settings: OPDSettings, config: Any) -> None:
        """Raise ConfigError for a KL in a reward that weighs nothing."""
        training = config.training_settings
        if settings.enabled and not settings.reward and training.kl_in == "reward" and training.beta:
            raise ConfigError(
                f"training.beta: {training.beta:g} in the reward has no effect with opd.reward=0, which leaves the "
                "reward out; fix: training.kl_in=loss"
            )

    def __init__(self, settings: OPDSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.gaps: dict[int, np.ndarray] = {}  # of the step's fresh samples, by their id

    def is_informative(self, group: Group) -> bool:
        """Return True: a teacher can score any response."""
        return True

    def before_advantages(self, batch: StepBatch) -> None:
        """Score the step's responses under policy and teacher."""
        samples = [sample for group in batch.groups for sample in group.trained]
        self.services.measure(samples)
        found = self.services.score_under(samples, "teacher")
        gaps = [theirs - sample.old_logprobs for sample, theirs in zip(samples, found, strict=True)]
        self.gaps = {id(sample): bounded(gap, self.settings.cap) for sample, gap in zip(samples, gaps, strict=True)}
        self.metrics |= gap_metrics(self.section, gaps, self.settings.cap)

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Return the mixture, a value per token."""
        parts = zip(group.samples, per_token(advantages, group.samples), strict=True)
        reward, coefficient = np.float32(self.settings.reward), np.float32(self.settings.coefficient)
        for sample in group.samples:  # a replayed one would only dilute the teacher's mean
            sample.optional |= not reward and id(sample) not in self.gaps
        return [reward * own + coefficient * self.gaps.get(id(sample), np.float32(0.0)) for sample, own in parts]
