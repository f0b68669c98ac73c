"""Confidence in an answer from the log-prob of a token after it: its weight, and how well it separates answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from algorithms.evaluation.responses import Response
from algorithms.utils.statistics import area_under_curve


@dataclass(frozen=True)
class Scale:
    """From log-probs to confidences: `beta · (log-prob - reference)`.

    Args:
        reference: the log-prob whose confidence is 0; None: their mean.
    """

    beta: float
    reference: float | None = None

    def of(self, responses: Sequence[Response]) -> "Scale":
        """Return the scale of these responses, with a reference."""
        known = [one.asked_logprob for one in responses if one.asked_logprob is not None]
        return self if self.reference is not None else replace(self, reference=float(np.mean(known or [0.0])))

    def confidence(self, logprob: float) -> float:
        """Return the confidence of a log-prob."""
        return self.beta * (logprob - (self.reference or 0.0))

    def weights(self, responses: Sequence[Response]) -> list[float]:
        """Return the weight of each answer's vote: its confidence within 0 and 1; 0 where it was not measured."""
        logprobs = [one.asked_logprob for one in responses]
        return [0.0 if value is None else min(1.0, max(0.0, self.confidence(value))) for value in logprobs]

    def summarize(self, responses: Sequence[Response]) -> dict[str, float]:
        """Return `asked` (answers), `auc` (`area_under_curve`), and the mean confidences, `correct` and `incorrect`.

        Answers that were not graded do not count.
        """
        asked = [one for one in responses if one.asked_logprob is not None and not one.failed]
        found = np.array([self.confidence(one.asked_logprob or 0.0) for one in asked])
        correct = np.array([one.correct for one in asked], bool)
        means = {
            name: float(found[own].mean()) if own.any() else 0.0
            for name, own in (("correct", correct), ("incorrect", ~correct))
        }
        return {"asked": float(len(asked)), "auc": area_under_curve(found, correct), **means}
