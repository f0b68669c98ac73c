"""Rows of several contexts, made by hand."""

from collections.abc import Sequence

import numpy as np

from algorithms.learner.batch import TrainingSample
from algorithms.rollout.types import NEW_CONTEXT


def joined(rows: Sequence[TrainingSample]) -> TrainingSample:
    """Rows as one, each in a context of its own, with the separator between them."""
    tokens = [part for row in rows for part in (row.tokens, np.array([NEW_CONTEXT], np.int32))][:-1]
    masks = [part for row in rows for part in (row.loss_mask, np.array([False]))][:-1]
    logprobs = np.concatenate([row.old_logprobs for row in rows])
    return TrainingSample(np.concatenate(tokens), np.concatenate(masks), 0.7, 0.05, logprobs, logprobs)
