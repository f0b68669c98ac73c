"""The presets of further methods against their papers' formulas, from whole logits, as in test_formulas.py."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from .conftest import RESPONSE_LIMIT, Response, hand_made, preset, token_logprobs
from .test_formulas import (
    Groups,
    clipped,
    of_formula,
    ratios,
    relative_error,
    rewards_of,
    standardized,
    through_the_stages,
)

EPS = 1e-4


def per_token(lm: Any, groups: Groups, terms: Any) -> torch.Tensor:
    """The mean over all tokens of what `terms(group)` gives for each response."""
    parts = [part for group in groups for part in terms(group)]
    return torch.stack([part.sum() for part in parts]).sum() / sum(len(part) for part in parts)


def ngrpo(lm: Any, groups: Groups) -> torch.Tensor:
    """arXiv 2509.18851: mean and deviation over the rewards and a virtual 1."""

    def terms(group: list[Response]) -> list[torch.Tensor]:
        extended = np.append(rewards_of(group), 1.0)
        advantages = (rewards_of(group) - extended.mean()) / (extended.std() + EPS)
        return [clipped(ratios(lm, r), float(a), 0.16, 0.24) for r, a in zip(group, advantages, strict=True)]

    return per_token(lm, groups, terms)


def w_reinforce(lm: Any, groups: Groups) -> torch.Tensor:
    """arXiv 2506.01347: 0.1 of a correct response, -1 of an incorrect one."""

    def terms(group: list[Response]) -> list[torch.Tensor]:
        return [clipped(ratios(lm, r), 0.1 if r.correct else -1.0, 0.2, 0.2) for r in group]

    return per_token(lm, groups, terms)


def sapo(lm: Any, groups: Groups) -> torch.Tensor:
    """arXiv 2511.20347: sigmoid(tau (r - 1)) 4 / tau, means over tokens, responses and queries."""
    total = torch.zeros(())
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            tau = 1.0 if advantage > 0 else 1.05
            gate = 4 / tau / (1 + torch.exp(-tau * (ratios(lm, response) - 1)))
            total = total + float(advantage) * gate.mean() / len(group)
    return total / len(groups)


def dppo(lm: Any, groups: Groups) -> torch.Tensor:
    """arXiv 2602.04879, binary TV: M r A with constant M; over a constant, no deviation."""
    total = torch.zeros(())
    for group in groups:
        rewards = rewards_of(group)
        for response, advantage in zip(group, rewards - rewards.mean(), strict=True):
            ratio = ratios(lm, response)
            old = torch.tensor(response.behavior).exp()
            moved = (token_logprobs(lm, response).exp() - old).detach()
            mask = (moved <= 0.15) if advantage > 0 else (moved >= -0.15)
            total = total + (mask * ratio * float(advantage)).sum() / RESPONSE_LIMIT / len(group)
    return total / len(groups)


def gmpo(lm: Any, groups: Groups) -> torch.Tensor:
    """arXiv 2507.20673, Eq. 4: (prod_t of clipped |r A|)^(1/|o|) with the sign of A, over responses and queries."""
    total = torch.zeros(())
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            bounded = clipped(
                ratios(lm, response), math.copysign(1.0, advantage), 1 - math.exp(-0.4), math.exp(0.4) - 1
            )
            mean = bounded.abs().log().mean().exp()
            total = total + float(advantage) * mean / len(group)
    return total / len(groups)


def ma_rlhf(lm: Any, groups: Groups) -> torch.Tensor:
    """Macro actions of arXiv 2410.02743: the clipped product of five tokens' ratios, over all tokens."""
    total, count = torch.zeros(()), 0
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            own = ratios(lm, response)
            for start in range(0, len(own), 5):
                total = total + clipped(own[start : start + 5].prod(), float(advantage), 0.2, 0.2)
            count += len(own)
    return total / count


FORMULAS = {
    "ma_rlhf": (ma_rlhf, 0.15),
    "ngrpo": (ngrpo, 0.3),
    "w_reinforce": (w_reinforce, 0.3),
    "sapo": (sapo, 0.6),
    "dppo": (dppo, 0.8),
    "gmpo": (gmpo, 0.6),
}


@pytest.mark.parametrize("member", FORMULAS)
def test_a_preset_trains_by_its_papers_formula(lm, member):
    formula, spread = FORMULAS[member]
    groups = hand_made(lm, own=spread, shared=0.0)
    loss, expected = of_formula(lm, lambda: formula(lm, groups))
    statistics, found = through_the_stages(lm, groups, preset(member))
    assert relative_error(found, expected) < 1e-3
    assert (0 < statistics.clipped < statistics.tokens) == (member != "sapo")
    if member != "dppo":  # its ratio is a constant weight: only the gradient is the formula's
        assert statistics.loss == pytest.approx(loss, rel=1e-3, abs=1e-6)


def test_ngrpo_learns_from_a_group_of_failures(lm):
    groups = [[Response(r.tokens, False, r.behavior, r.engine) for r in hand_made(lm, own=0.0, shared=0.0)[0]]]
    _, expected = of_formula(lm, lambda: ngrpo(lm, groups))
    statistics, found = through_the_stages(lm, groups, preset("ngrpo"))
    assert relative_error(found, expected) < 1e-3 and statistics.trained_tokens == statistics.tokens
    assert through_the_stages(lm, groups, preset("ngrpo", "training.advantage=std"))[0].trained_tokens == 0
