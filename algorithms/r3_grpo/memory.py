"""Between a step's samples and the history's entries."""

import numpy as np

from algorithms.grpo.types import Sample
from algorithms.history.store import ReplayEntry
from algorithms.rollout.types import Context, Rollout


def to_entry(sample: Sample, step: int) -> ReplayEntry:
    """A fresh sample as the history keeps it: its outcome reward, never a ranking reward.

    Raises:
        ValueError: the sample has no behavior log-probs yet.
    """
    if sample.old_logprobs is None:
        raise ValueError("only samples with behavior log-probs can be remembered: they come from scoring or update")
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


def is_finite(sample: Sample) -> bool:
    """Whether a sample's log-probs are numbers: those of a policy that overflowed are not, and are not kept."""
    return sample.old_logprobs is None or bool(np.isfinite(sample.old_logprobs).all())


def to_sample(entry: ReplayEntry, group: int) -> Sample:
    """A stored entry as a replayed member of a group, under its own stored prompt."""
    rollout = Rollout(
        request_id=-1,
        uid=entry.uid,
        group=group,
        context=entry.context,
        tokens=entry.tokens,
        loss_mask=entry.loss_mask,
        sampling_logprobs=np.zeros(len(entry.tokens), np.float32),
        reward=entry.reward,
        correct=entry.correct,
        truncated=entry.truncated,
        verdict="replayed",
        weights_version=-1,
        messages=({"role": "assistant", "content": entry.text},),
    )
    return Sample(rollout, reward=entry.reward, old_logprobs=entry.old_logprobs, replayed=True)


def strip_reflection(reflected: Sample, plain: Rollout) -> Sample:
    """A reflected answer as if it had been given to the bare prompt; its log-probs are still to be computed."""
    start = reflected.rollout.prompt_length
    prompt = plain.tokens[: plain.prompt_length]
    mask = np.concatenate([np.zeros(len(prompt), bool), reflected.rollout.loss_mask[start:]])
    rollout = Rollout(
        request_id=-1,
        uid=reflected.rollout.uid,
        group=reflected.rollout.group,
        context=Context.PLAIN,
        tokens=np.concatenate([prompt, reflected.rollout.tokens[start:]]),
        loss_mask=mask,
        sampling_logprobs=np.zeros(len(mask), np.float32),
        reward=reflected.rollout.reward,
        correct=reflected.rollout.correct,
        truncated=reflected.rollout.truncated,
        verdict=reflected.rollout.verdict,
        weights_version=reflected.rollout.weights_version,
        messages=reflected.rollout.messages[-1:],
    )
    return Sample(rollout, reward=reflected.reward)
