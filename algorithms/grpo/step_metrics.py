"""What a step's groups and update say in TensorBoard's tags. Pure functions."""

from collections.abc import Sequence

import numpy as np

from algorithms.grpo.groups import Group
from algorithms.learner.update import UpdateStatistics


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, correctness and lengths of the fresh rollouts of a step; shares are of all its groups.

    `reward/mean` is the mean outcome reward; `reward/training_mean` has SERR's values in its place where there are any.
    Without a single rollout every mean is NaN.
    """
    samples = [sample for group in groups for sample in group.samples if not sample.replayed]
    solved = [[s.rollout.correct for s in group.samples if not s.replayed] for group in groups]
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
    advantages = np.array([sample.advantage for group in groups for sample in group.samples])
    if not len(advantages):
        return {"groups/zero_advantage": 1.0}
    return {"groups/zero_advantage": float((advantages == 0).mean())}


def update_metrics(steps: Sequence[UpdateStatistics]) -> dict[str, float]:
    """The optimizer steps of one training step, averaged over their tokens."""
    total = UpdateStatistics()
    for step in steps:
        total = total.merge(step)
    tokens, on_policy = max(total.tokens, 1.0), max(total.entropy_tokens, 1.0)
    return {
        "policy/loss": sum(step.loss for step in steps) / max(len(steps), 1),
        "policy/entropy": total.entropy / on_policy,
        "policy/clip_fraction": total.clipped / tokens,
        "policy/grad_norm": float(np.mean([step.grad_norm for step in steps])) if steps else 0.0,
        "policy/kl": total.kl / max(len(steps), 1),
        "policy/skipped_steps": sum(step.skipped_steps for step in steps),
        "policy/trained_tokens": total.trained_tokens,
    }


def mismatch_metrics(groups: Sequence[Group], steps: Sequence[UpdateStatistics]) -> dict[str, float]:
    """The largest |log-prob(engine) - log-prob(trainer)| of the step's rollouts.

    From the scoring pass where there was one; else from the first optimizer step, whose policy is still the one that
    sampled.
    """
    gaps = [
        np.abs(sample.behaviour_logprobs - sample.rollout.engine_logprobs).max()
        for group in groups
        for sample in group.samples
        if sample.behaviour_logprobs is not None and not sample.replayed
    ]
    if gaps:
        return {"policy/logp_mismatch_max": float(max(gaps))}
    return {"policy/logp_mismatch_max": steps[0].max_logp_mismatch if steps else 0.0}
