"""What a step's groups and update say in TensorBoard's tags. Pure functions."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from algorithms.grpo.types import Group
from algorithms.learner.flops import LearnerFacts, model_flops_utilization, peak_flops
from algorithms.learner.loss import LossSettings
from algorithms.learner.token_weights import bounded_tokens
from algorithms.learner.update import UpdateStatistics


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, correctness and lengths of a step's fresh rollouts; shares are of all its groups, trained on or not.

    `reward/mean` is the mean outcome reward; `reward/training_mean` has SERR's values in its place where there are any.
    Without a single rollout every mean is NaN.
    """
    samples = [sample for group in groups for sample in group.fresh]
    solved = [[sample.rollout.correct for sample in group.fresh] for group in groups]
    lengths = [sample.rollout.response_length for sample in samples]
    return {
        "reward/mean": _mean([sample.reward for sample in samples]),
        "reward/training_mean": _mean([sample.training_reward for sample in samples]),
        "reward/correct": _mean([sample.rollout.correct for sample in samples]),
        "groups/count": float(len(groups)),
        "groups/solve_all": _mean([all(group) for group in solved]),
        "groups/solve_none": _mean([not any(group) for group in solved]),
        "response/mean_tokens": _mean(lengths),
        "response/max_tokens": float(max(lengths, default=0)),
        "response/truncated": _mean([sample.rollout.truncated for sample in samples]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def advantage_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """How many responses carry a learning signal."""
    silent = [not np.any(sample.advantages) for group in groups for sample in group.samples]
    return {"groups/zero_advantage": float(np.mean(silent)) if silent else 1.0}


def update_metrics(groups: Sequence[Group], steps: Sequence[UpdateStatistics]) -> dict[str, float]:
    """The optimizer steps of one training step, averaged over their tokens.

    Entropy and mismatch are those of the fresh rollouts under the policy as it was before the steps.
    """
    total = UpdateStatistics()
    for step in steps:
        total = total.merge(step)
    mean_mismatch, largest_mismatch = _mismatch(groups)
    return {
        "policy/loss": sum(step.loss for step in steps) / max(len(steps), 1),
        "policy/entropy": _entropy(groups),
        "policy/clip_fraction": total.clipped / max(total.tokens, 1.0),
        "policy/grad_norm": float(np.mean([step.grad_norm for step in steps])) if steps else 0.0,
        "policy/kl": total.kl / max(len(steps), 1),
        "policy/skipped_steps": sum(step.skipped_steps for step in steps),
        "policy/trained_tokens": total.trained_tokens,
        "policy/logp_mismatch_mean": mean_mismatch,
        "policy/logp_mismatch_max": largest_mismatch,
    }


def correction_metrics(groups: Sequence[Group], settings: LossSettings) -> dict[str, float]:
    """The share of the fresh rollouts' tokens whose importance weight was cut to the cap, or masked."""
    pairs = [
        (s.old_logprobs, s.rollout.sampling_logprobs)
        for group in groups
        for s in group.samples
        if s.old_logprobs is not None and not s.replayed
    ]
    if settings.importance_cap == 0 or not pairs:
        return {"policy/is_bounded": 0.0}
    trainer, engine = (torch.from_numpy(np.concatenate(side)) for side in zip(*pairs, strict=True))
    bounded = bounded_tokens(trainer, engine, settings=settings, lengths=[len(own) for own, _ in pairs])
    return {"policy/is_bounded": bounded / max(1, len(trainer))}


def _entropy(groups: Sequence[Group]) -> float:
    """Mean over the fresh samples' tokens; a scoring pass has measured them, or the update."""
    measured = [s.entropies for g in groups for s in g.samples if s.entropies is not None and not s.replayed]
    tokens = sum(len(entropies) for entropies in measured)
    return sum(float(entropies.sum()) for entropies in measured) / max(tokens, 1.0)


def _mismatch(groups: Sequence[Group]) -> tuple[float, float]:
    """Mean and largest |log-prob(engine) - log-prob(trainer)| over the tokens of the step's rollouts."""
    gaps = [
        np.abs(sample.old_logprobs - sample.rollout.sampling_logprobs)
        for group in groups
        for sample in group.samples
        if sample.old_logprobs is not None and not sample.replayed
    ]
    joined = np.concatenate([np.zeros(0, np.float32), *gaps])
    return (float(joined.mean(dtype=np.float64)), float(joined.max())) if len(joined) else (0.0, 0.0)


# The stages whose time a part of the split is; what they leave of the step is bookkeeping.
STAGES = {"time/statistics": "time/score_tokens", "time/update": "time/update_policy"}


def learner_rates(
    steps: Sequence[UpdateStatistics], facts: LearnerFacts, learners: int, peak_tflops: float | None
) -> dict[str, float]:
    """What the optimizer steps of one training step got through, as the learners themselves timed them.

    Args:
        steps: what each of them did, over all learners.
        facts: of one learner.
        learners: how many work at the same time.
        peak_tflops: of one learner's device; None: by its name.

    Returns:
        `throughput/learner_tokens_per_s` (prompts included), `throughput/padding_share` (of the token slots of the
        micro-batches) and, where the device's peak is known, `throughput/mfu`. Nothing without a step.
    """
    seconds = sum(step.seconds for step in steps)
    tokens, slots = sum(step.passed_tokens for step in steps), sum(step.slots for step in steps)
    if seconds <= 0 or slots <= 0:
        return {}
    peak = peak_tflops * 1e12 if peak_tflops else peak_flops(facts.device, facts.dtype)
    mfu = model_flops_utilization(sum(step.flops for step in steps), seconds, learners, peak)
    return {
        "throughput/learner_tokens_per_s": tokens / seconds,
        "throughput/padding_share": 1.0 - tokens / slots,
        **({} if mfu is None else {"throughput/mfu": mfu}),
    }


def time_split(record: Mapping[str, float]) -> dict[str, float]:
    """`time/statistics` and `time/update` from the times of the stages that do them."""
    return {tag: record[stage] for tag, stage in STAGES.items() if stage in record}
