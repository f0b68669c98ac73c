"""From groups of samples to the rows that the learner is fed."""

from collections.abc import Sequence

import numpy as np

from algorithms.grpo.types import Group, Sample
from algorithms.learner.batch import TrainingSample
from algorithms.learner.loss import LossAggregation, loss_weights


def minibatches(groups: Sequence[Group], count: int, rng: np.random.Generator) -> list[list[tuple[int, Sample]]]:
    """Deal the samples of all groups, shuffled, into `count` optimizer steps; each comes with its group's index."""
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    if count == 1:
        return [samples]
    order = rng.permutation(len(samples))
    return [[samples[i] for i in part] for part in np.array_split(order, count) if len(part)]


def training_rows(
    samples: Sequence[tuple[int, Sample]], *, loss_aggregation: LossAggregation, max_response_tokens: int
) -> list[TrainingSample]:
    """Rows of one optimizer step, their token weights normalized over all of it."""
    lengths = np.array([sample.rollout.response_length for _, sample in samples])
    group_ids = np.array([group for group, _ in samples])
    weights = loss_weights(
        lengths, group_ids, loss_aggregation=loss_aggregation, max_response_tokens=max_response_tokens
    )
    return [_row(sample, float(weight)) for (_, sample), weight in zip(samples, weights, strict=True)]


def _row(sample: Sample, weight: float) -> TrainingSample:
    rollout, mask = sample.rollout, sample.rollout.loss_mask
    return TrainingSample(
        tokens=rollout.tokens,
        loss_mask=mask,
        advantage=sample.advantage,
        weight=weight,
        old_logprobs=None if sample.old_logprobs is None else sample.old_logprobs[mask],
        sampling_logprobs=None if sample.replayed else rollout.sampling_logprobs[mask],
    )


def scoring_row(sample: Sample) -> TrainingSample:
    """The row of a sample whose log-probs are asked for."""
    return TrainingSample(tokens=sample.rollout.tokens, loss_mask=sample.rollout.loss_mask)


def scatter_to_sequence(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Put [L] values of response tokens at their places among all tokens: float32 [T], 0 elsewhere."""
    full = np.zeros(len(mask), np.float32)
    full[mask] = values
    return full
