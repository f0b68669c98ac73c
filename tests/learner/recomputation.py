"""GRPO's loss in plain PyTorch, token by token from whole logits: what the learner is checked against."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Recomputed:
    loss: float
    gradients: dict[str, torch.Tensor]
    clipped: int
    kl: float
    replayed_clipped: int
    max_replayed_ratio: float


def recompute(
    lm: Any,
    groups: Sequence[Any],
    *,
    loss_aggregation: str,
    max_response_tokens: int,
    clip_low: float,
    clip_high: float,
    importance_cap: float = 0.0,
    beta: float = 0.0,
    reference: Any = None,
    temperature: float = 1.0,
) -> Recomputed:
    """One optimizer step over all groups, with no batching, packing or chunking."""
    lm.zero_grad(set_to_none=True)
    all_samples = [sample for group in groups for sample in group.samples]
    total_tokens = sum(int(sample.rollout.loss_mask.sum()) for sample in all_samples)
    objective, penalty, clipped = torch.zeros(()), torch.zeros(()), 0
    replayed_clipped, largest = 0, 0.0
    for group in groups:
        for sample in group.samples:
            length = int(sample.rollout.loss_mask.sum())
            scale = {
                "token": 1 / total_tokens,
                "response": 1 / (len(groups) * len(group.samples) * length),
                "constant": 1 / (len(all_samples) * max_response_tokens),
            }[loss_aggregation]
            logprobs = token_logprobs(lm, sample.rollout, temperature)
            with torch.no_grad():
                base = token_logprobs(reference, sample.rollout, temperature) if reference is not None else None
            for place, (position, logprob) in enumerate(logprobs.items()):
                stored = sample.old_logprobs
                old = logprob.item() if stored is None else float(stored[place])
                ratio = (logprob - old).exp()
                bounded = min(max(ratio.item(), 1 - clip_low), 1 + clip_high)
                advantage = sample.advantage
                term = ratio * advantage
                largest = max(largest, ratio.item() * sample.replayed)
                if bounded * advantage < ratio.item() * advantage:
                    term, clipped = torch.tensor(bounded * advantage), clipped + 1
                    replayed_clipped += sample.replayed
                if importance_cap and not sample.replayed:
                    term = term * min(math.exp(old - float(sample.rollout.sampling_logprobs[place])), importance_cap)
                objective = objective + scale * term
                if beta and not sample.replayed:
                    difference = base[position] - logprob
                    penalty = penalty + scale * (difference.exp() - difference - 1)
    loss = -objective + beta * penalty
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    lm.zero_grad(set_to_none=True)
    return Recomputed(loss.item(), gradients, clipped, penalty.item(), replayed_clipped, largest)


def token_logprobs(lm: Any, rollout: Any, temperature: float) -> dict[int, torch.Tensor]:
    """The log-prob of each of the policy's tokens, by its position in the sequence."""
    tokens = torch.tensor(rollout.tokens.tolist())
    logits = lm(input_ids=tokens[None]).logits[0] / temperature
    table = torch.log_softmax(logits, -1)
    own = [position for position, is_own in enumerate(rollout.loss_mask.tolist()) if is_own]
    return {position: table[position - 1, tokens[position]] for position in own}


def relative_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """‖found - expected‖ / ‖expected‖ over all parameters."""
    assert found.keys() == expected.keys()
    gap = math.sqrt(sum(float((found[name] - expected[name]).square().sum()) for name in expected))
    return gap / math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
