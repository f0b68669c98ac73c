"""Turn groups of samples into the learner's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.types import Group, Sample
from algorithms.learner.batch import TrainingSample
from algorithms.losses.term import DIRECT, Term, term
from algorithms.losses.token_weights import loss_weights


def minibatches(groups: Sequence[Group], count: int, rng: np.random.Generator) -> list[list[tuple[int, Sample]]]:
    """Distribute the samples of all groups, shuffled, over `count` optimizer steps, each with its group's index."""
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    if count == 1:
        return [samples]
    order = rng.permutation(len(samples))
    return [[samples[i] for i in part] for part in np.array_split(order, count) if len(part)]


def training_samples(
    samples: Sequence[tuple[int, Sample]], training: TrainingSettings, max_response_tokens: int
) -> list[TrainingSample]:
    """Make the rows of a training step with one optimizer step, their token weights normalized over all of it."""
    return training_rows([samples], training, max_response_tokens)[0]


def training_rows(
    dealt: Sequence[Sequence[tuple[int, Sample]]], training: TrainingSettings, max_response_tokens: int
) -> list[list[TrainingSample]]:
    """Make the rows of each optimizer step of a training step.

    Token weights are normalized over an optimizer step. Means over a group's responses are those of the whole training
    step: a shuffled mini-batch holds few members of a group, and how many is chance. A masked sample counts as one
    without tokens: it weighs nothing, and is still one of the responses that such means are over. One that is not
    `Sample.is_counted` is not even that.
    """

    def weights_of(samples: Sequence[tuple[int, Sample]]) -> np.ndarray:
        counted = [place for place, (_, sample) in enumerate(samples) if sample.is_counted]
        rows = [samples[place] for place in counted]
        weights = np.zeros(len(samples))
        weights[counted] = loss_weights(
            np.array([0 if sample.masked else sample.rollout.response_length for _, sample in rows], int),
            np.array([group for group, _ in rows], int),
            loss_aggregation=training.loss_aggregation,
            max_response_tokens=max_response_tokens,
        )
        return weights

    if training.loss_aggregation == "response" and dealt:
        whole: np.ndarray = weights_of([pair for samples in dealt for pair in samples]) * len(dealt)
        weights = np.split(whole, np.cumsum([len(samples) for samples in dealt])[:-1])
    else:
        weights = [weights_of(samples) for samples in dealt]
    penalty = kl_term(training)
    return [
        [
            _row(sample, float(weight), penalty) if sample.is_counted and not sample.masked else masked_row(sample)
            for (_, sample), weight in zip(samples, own, strict=True)
        ]
        for samples, own in zip(dealt, weights, strict=True)
    ]


def deal_auxiliary(samples: Sequence[Sample], minibatch: int, minibatches: int) -> list[TrainingSample]:
    """Make the rows of one optimizer step that have their own objective: the mean over all tokens of `samples`.

    They carry no log-probs of a sampling policy: their one term is `direct`, in every loss.
    """
    weight = minibatches / max(1, sum(sample.rollout.response_length for sample in samples))
    rows = (_row(sample, weight) for sample in samples[minibatch::minibatches])
    return [replace(row, old_logprobs=None, sampling_logprobs=None, terms={DIRECT: 1.0}, inputs={}) for row in rows]


def kl_term(training: TrainingSettings) -> dict[Term, float]:
    """Return the KL penalty as a term with its weight in on-policy rows; nothing if none is in the loss."""
    if not training.loss_beta:
        return {}
    return {term("kl", coefficient=training.loss_beta, estimator=training.kl_estimator): 1.0}


def _row(sample: Sample, weight: float, penalty: Mapping[Term, float] | None = None) -> TrainingSample:
    rollout = sample.rollout
    penalty = {} if sample.replayed else penalty or {}
    return TrainingSample(
        tokens=rollout.tokens,
        loss_mask=rollout.loss_mask,
        advantages=sample.advantages,
        weight=weight,
        old_logprobs=sample.old_logprobs,
        sampling_logprobs=None if sample.replayed else rollout.sampling_logprobs,
        terms={**sample.terms, **penalty},
        inputs=sample.inputs,
    )


def scoring_row(sample: Sample) -> TrainingSample:
    """Make the row of a sample whose log-probs are wanted."""
    return TrainingSample(tokens=sample.rollout.tokens, loss_mask=sample.rollout.loss_mask)


def measuring_row(sample: Sample) -> TrainingSample:
    """Make the row of a sample that an update measures without training on it."""
    silent = np.zeros(sample.rollout.response_length, np.float32)
    return replace(scoring_row(sample), sampling_logprobs=silent, multiplicity=0)


def masked_row(sample: Sample) -> TrainingSample:
    """Make the row of a sample that is left out of the loss: the update measures it, if nothing has."""
    return replace(measuring_row(sample), old_logprobs=sample.old_logprobs)
