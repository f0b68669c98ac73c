"""Metrics of a step's groups and update, under TensorBoard's tags. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from algorithms.grpo.types import Group
from algorithms.learner.flops import LearnerFacts, model_flops_utilization, peak_flops
from algorithms.learner.update import UpdateStatistics
from algorithms.losses.base import LossSettings
from algorithms.losses.term import POLICY
from algorithms.losses.token_weights import bounded_tokens
from algorithms.rollout.types import NEW_CONTEXT
from r3env.core import Reason

# Of a step, in the metrics over all of its tokens.
TOKENS_AT_ONCE = 1 << 20


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return rewards, correctness and lengths of a step's fresh rollouts; shares are of all groups, trained or not.

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
        "response/further_contexts": _mean([float((s.rollout.tokens == NEW_CONTEXT).sum()) for s in samples]),
        "response/truncated": _mean([sample.rollout.truncated for sample in samples]),
        "response/no_answer": _mean([sample.rollout.verdict == Reason.NO_ANSWER for sample in samples]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def advantage_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return how many responses carry a learning signal."""
    silent = [not np.any(sample.advantages) for group in groups for sample in group.samples]
    return {"groups/zero_advantage": float(np.mean(silent)) if silent else 1.0}


def update_metrics(groups: Sequence[Group], steps: Sequence[UpdateStatistics]) -> dict[str, float]:
    """Average the optimizer steps of one training step over their tokens.

    Entropy and mismatch are those of the fresh rollouts under the policy as it was before the steps. Terms of the loss
    that rows name beside its objective have a number of their own, `loss/NAME`.
    """
    total = UpdateStatistics()
    for step in steps:
        total = total.merge(step)
    mean_mismatch, largest_mismatch = _mismatch(groups)
    of_terms = {tag: value / len(steps) for tag, value in total.terms.items() if tag.startswith("loss/")}
    of_terms.pop(f"loss/{POLICY.name}", None)
    kl = total.terms.get("value/kl", 0.0) / max(total.terms.get("tokens/kl", 0.0), 1.0)
    return of_terms | {
        "policy/loss": sum(step.loss for step in steps) / max(len(steps), 1),
        "policy/entropy": _entropy(groups),
        "policy/clip_fraction": total.clipped / max(total.tokens, 1.0),
        "replay/clip_fraction": total.replayed_clipped / max(total.replayed_tokens, 1.0),
        "replay/ratio_max": total.max_replayed_ratio,
        "policy/grad_norm": float(np.mean([step.grad_norm for step in steps])) if steps else 0.0,
        "policy/kl": kl + _kl_of_rewards(groups),
        "policy/skipped_steps": sum(step.skipped_steps for step in steps),
        "policy/trained_tokens": total.trained_tokens,
        "policy/logp_mismatch_mean": mean_mismatch,
        "policy/logp_mismatch_max": largest_mismatch,
    }


def correction_metrics(groups: Sequence[Group], settings: LossSettings) -> dict[str, float]:
    """Return the share of the fresh rollouts' tokens whose importance weight was capped or masked."""
    if settings.importance_cap == 0:
        return {"policy/is_bounded": 0.0}
    bounded = tokens = 0
    for pairs in _in_parts(_logprob_pairs(groups)):
        trainer, engine = (torch.from_numpy(np.concatenate(side)) for side in zip(*pairs, strict=True))
        bounded += bounded_tokens(trainer, engine, settings=settings, lengths=[len(own) for own, _ in pairs])
        tokens += len(trainer)
    return {"policy/is_bounded": bounded / max(1, tokens)}


def _entropy(groups: Sequence[Group]) -> float:
    """Mean over the fresh samples' tokens; a scoring pass has measured them, or the update."""
    measured = [
        (s.entropy, s.rollout.response_length)
        for g in groups
        for s in g.samples
        if s.entropy is not None and not s.replayed
    ]
    return sum(entropy for entropy, _ in measured) / max(sum(length for _, length in measured), 1.0)


def _kl_of_rewards(groups: Sequence[Group]) -> float:
    """Mean over the tokens of what rewards pay of the KL; 0 where it is in the loss."""
    fresh = [sample for group in groups for sample in group.trained]
    tokens = sum(sample.rollout.response_length for sample in fresh)
    return sum(sample.kl for sample in fresh) / max(tokens, 1)


def _mismatch(groups: Sequence[Group]) -> tuple[float, float]:
    """Mean and largest |log-prob(engine) - log-prob(trainer)| over the tokens of the step's rollouts."""
    total, tokens, largest = 0.0, 0, 0.0
    for pairs in _in_parts(_logprob_pairs(groups)):
        trainer, engine = (np.concatenate(side) for side in zip(*pairs, strict=True))
        gaps = np.abs(trainer - engine)
        total, tokens = total + float(gaps.sum(dtype=np.float64)), tokens + len(gaps)
        largest = max(largest, float(gaps.max(initial=0.0)))
    return total / max(tokens, 1), largest


def _logprob_pairs(groups: Sequence[Group]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Log-probs of trainer and engine, float32 [L] each, of the fresh samples that have both."""
    for group in groups:
        for sample in group.samples:
            if sample.old_logprobs is not None and not sample.replayed:
                yield sample.old_logprobs, sample.rollout.sampling_logprobs


def _in_parts(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Cut pairs into parts of some tokens: what is computed of a part is small beside the step's arrays."""
    part: list[tuple[np.ndarray, np.ndarray]] = []
    tokens = 0
    for pair in pairs:
        part.append(pair)
        tokens += len(pair[0])
        if tokens >= TOKENS_AT_ONCE:
            yield part
            part, tokens = [], 0
    if part:
        yield part


# The stages whose time a part of the split is; what they leave of the step is bookkeeping.
STAGES = {"time/statistics": "time/score_tokens", "time/update": "time/update_policy"}


def learner_rates(
    steps: Sequence[UpdateStatistics], facts: LearnerFacts, learners: int, peak_tflops: float | None
) -> dict[str, float]:
    """Return the throughput of one training step's optimizer steps, as timed by the learners.

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
    """Return `time/statistics` and `time/update` from the times of their stages."""
    return {tag: record[stage] for tag, stage in STAGES.items() if stage in record}
