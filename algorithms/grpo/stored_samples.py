"""Between a step's samples and the history's entries."""

import numpy as np

from algorithms.grpo.types import Sample
from algorithms.history.entry import ReplayEntry
from algorithms.rollout.types import Rollout


def to_entry(sample: Sample, step: int) -> ReplayEntry:
    """Make the history's entry of a fresh sample: its outcome reward, never one that a mechanism shaped.

    Raises:
        ValueError: the sample has no log-probs yet.
    """
    if sample.old_logprobs is None:
        raise ValueError("only samples with log-probs can be stored: they come from scoring or from the update")
    rollout = sample.rollout
    return ReplayEntry(
        uid=rollout.uid,
        context=rollout.context,
        tokens=rollout.tokens,
        loss_mask=rollout.loss_mask,
        old_logprobs=sample.old_logprobs,
        reward=sample.reward,
        correct=rollout.correct,
        truncated=rollout.truncated,
        step=step,
        text=rollout.messages[-1]["content"] if rollout.messages else "",
    )


def to_sample(entry: ReplayEntry, group: int) -> Sample:
    """Make a replayed member of a group of a stored entry, under its own stored prompt."""
    rollout = Rollout(
        request_id=-1,
        uid=entry.uid,
        group=group,
        context=entry.context,
        tokens=entry.tokens,
        loss_mask=entry.loss_mask,
        sampling_logprobs=np.zeros(len(entry.old_logprobs), np.float32),
        reward=entry.reward,
        correct=entry.correct,
        truncated=entry.truncated,
        verdict="replayed",
        weights_version=-1,
        messages=({"role": "assistant", "content": entry.text},),
    )
    return Sample(rollout, reward=entry.reward, old_logprobs=entry.old_logprobs, replayed=True)
