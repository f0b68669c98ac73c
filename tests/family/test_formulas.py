"""Each preset against its paper's formula: from hand-made responses through rewards, advantages and the update.

The formulas are objectives to maximize, written response by response from whole logits; nothing of the library's own
is in them but the epsilon of a standard deviation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.grpo.samples import training_samples
from algorithms.grpo.types import StepBatch
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.update import UpdateStatistics, accumulate_gradients
from algorithms.losses.base import LossSettings

from .conftest import RESPONSE_LIMIT, Response, Stages, as_groups, hand_made, preset, token_logprobs

Groups = list[list[Response]]
EPS = 1e-4


def through_the_stages(lm: Any, groups: Groups, config: Any, reference: Any = None) -> tuple[UpdateStatistics, dict]:
    """The update that a configuration makes of these responses."""
    stages = Stages(config)
    batch = StepBatch(0, groups=as_groups(groups))
    replayed = [sample for group in batch.groups for sample in group.samples if sample.replayed]
    for sample in replayed:  # rewarded in the step that sampled it
        sample.replayed = False
    stages.shape_rewards(batch)
    for sample in replayed:
        sample.replayed = True
    stages.compute_advantages(batch)
    training = config.training_settings
    samples = [(index, sample) for index, group in enumerate(batch.groups) for sample in group.samples]
    rows = training_samples(samples, training, RESPONSE_LIMIT)
    lm.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(
        lm, rows, ForwardSettings(token_budget=64), LossSettings.of(training), reference if training.beta else None
    )
    return statistics, gradients_of(lm)


def of_formula(lm: Any, objective: Callable[[], torch.Tensor]) -> tuple[float, dict]:
    """The loss and gradient of an objective to maximize."""
    lm.zero_grad(set_to_none=True)
    loss = -objective()
    loss.backward()
    return loss.item(), gradients_of(lm)


def gradients_of(lm: Any) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    lm.zero_grad(set_to_none=True)
    return found


def relative_error(found: dict, expected: dict) -> float:
    assert found.keys() == expected.keys()
    gap = sum(float((found[name] - expected[name]).square().sum()) for name in expected)
    return (gap / sum(float(value.square().sum()) for value in expected.values())) ** 0.5


def rewards_of(group: list[Response]) -> np.ndarray:
    return np.array([float(response.correct) for response in group])


def standardized(rewards: np.ndarray) -> np.ndarray:
    return (rewards - rewards.mean()) / (rewards.std() + EPS)


def ratios(lm: Any, response: Response) -> torch.Tensor:
    return (token_logprobs(lm, response) - torch.tensor(response.behavior)).exp()


def clipped(ratio: torch.Tensor, advantage: float, low: float, high: float) -> torch.Tensor:
    """PPO's term of one ratio or many: min(r·A, clip(r)·A)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def grpo(lm: Any, groups: Groups, reference: Any) -> torch.Tensor:
    """Eq. 3 of arXiv 2402.03300: mean over a response's tokens, its group, the queries; KL inside, by k3."""
    total = torch.zeros(())
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            difference = token_logprobs(reference, response) - token_logprobs(lm, response)
            kl = difference.exp() - difference - 1
            tokens = clipped(ratios(lm, response), float(advantage), 0.2, 0.2) - 0.04 * kl
            total = total + tokens.sum() / len(tokens) / len(group)
    return total / len(groups)


def dapo(lm: Any, groups: Groups, reference: Any) -> torch.Tensor:
    """Eq. 8 and Eq. 13 of arXiv 2503.14476, with its rewards of 1 and -1; one token mean over the batch."""
    expected, cache = RESPONSE_LIMIT, RESPONSE_LIMIT // 5
    total, count = torch.zeros(()), 0
    for group in groups:
        rewards = []
        for response in group:
            length = len(response.behavior)
            over = 0.0 if length <= expected - cache else ((expected - cache) - length) / cache
            rewards.append((1.0 if response.correct else -1.0) + over)
        for response, advantage in zip(group, standardized(np.array(rewards)), strict=True):
            tokens = clipped(ratios(lm, response), float(advantage), 0.2, 0.28)
            total, count = total + tokens.sum(), count + len(tokens)
    return total / count


def dr_grpo(lm: Any, groups: Groups, reference: Any) -> torch.Tensor:
    """Figure 1 of arXiv 2503.20783: no std, no length; the sum of tokens over a constant, the longest response."""
    total = torch.zeros(())
    for group in groups:
        rewards = rewards_of(group)
        for response, advantage in zip(group, rewards - rewards.mean(), strict=True):
            tokens = clipped(ratios(lm, response), float(advantage), 0.2, 0.2)
            total = total + tokens.sum() / RESPONSE_LIMIT / len(group)
    return total / len(groups)


def gspo(lm: Any, groups: Groups, reference: Any) -> torch.Tensor:
    """Eq. 5 and Eq. 7 of arXiv 2507.18071: one length-normalized ratio a response."""
    total = torch.zeros(())
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            logprob = token_logprobs(lm, response).sum()
            before = float(response.behavior.astype(np.float64).sum())
            ratio = ((logprob - before) / len(response.behavior)).exp()
            total = total + clipped(ratio, float(advantage), 3e-4, 4e-4) / len(group)
    return total / len(groups)


def cispo(lm: Any, groups: Groups, reference: Any) -> torch.Tensor:
    """Eq. 4 and Eq. 5 of arXiv 2506.13585, no lower bound, 5 as the upper one; one token mean over the batch."""
    total, count = torch.zeros(()), 0
    for group in groups:
        for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
            weight = ratios(lm, response).detach().clamp(max=5.0)
            total = total + (weight * float(advantage) * token_logprobs(lm, response)).sum()
            count += len(weight)
    return total / count


# Spreads of the log-ratios at which some tokens are clipped and some are not.
FORMULAS = {
    "grpo": (grpo, {"own": 0.3, "shared": 0.0}),
    "dapo": (dapo, {"own": 0.3, "shared": 0.0}),
    "dr_grpo": (dr_grpo, {"own": 0.3, "shared": 0.0}),
    "gspo": (gspo, {"own": 0.0, "shared": 6e-4}),
    "cispo": (cispo, {"own": 1.5, "shared": 0.0}),
}


@pytest.mark.parametrize("member", FORMULAS)
def test_a_preset_trains_by_its_papers_formula(lm, reference, member):
    formula, spreads = FORMULAS[member]
    groups = hand_made(lm, **spreads)
    loss, expected = of_formula(lm, lambda: formula(lm, groups, reference))
    statistics, found = through_the_stages(lm, groups, preset(member), reference)
    assert relative_error(found, expected) < 1e-3
    assert statistics.loss == pytest.approx(loss, rel=1e-3, abs=1e-6)
    assert 0 < statistics.clipped < statistics.tokens


def test_rloo_trains_by_its_papers_formula(lm):
    """Eq. 9 of arXiv 2402.14740 on fresh responses, over the constant that `loss_aggregation: constant` divides by."""
    groups = hand_made(lm, own=0.0, shared=0.0, fresh=True)

    def formula():
        total = torch.zeros(())
        for group in groups:
            rewards = rewards_of(group)
            for index, response in enumerate(group):
                baseline = float(np.delete(rewards, index).mean())
                total = total + (rewards[index] - baseline) * token_logprobs(lm, response).sum() / len(group)
        return total / len(groups)

    _, expected = of_formula(lm, formula)
    statistics, found = through_the_stages(lm, groups, preset("rloo"))
    assert relative_error({name: value * RESPONSE_LIMIT for name, value in found.items()}, expected) < 1e-4
    assert statistics.clipped == 0


def test_in_its_first_step_gspo_is_grpo_and_then_no_longer(lm):
    """On fresh responses every ratio is 1: what differs is what comes after."""
    grpo, gspo = preset("grpo", "training.beta=0"), preset("gspo")
    for groups, same in (
        (hand_made(lm, own=0.0, shared=0.0, fresh=True), True),
        (hand_made(lm, own=0.3, shared=0.0), False),
    ):
        _, expected = through_the_stages(lm, groups, grpo)
        _, found = through_the_stages(lm, groups, gspo)
        assert (relative_error(found, expected) < 1e-5) == same


@pytest.mark.parametrize("member", [member for member in FORMULAS if member != "grpo"])
def test_replayed_responses_keep_their_stored_ratios_in_every_member_and_take_no_correction(lm, member):
    formula, spreads = FORMULAS[member]
    groups = hand_made(lm, **spreads, engine=0.5, replayed=range(4))
    _, expected = of_formula(lm, lambda: formula(lm, groups, None))
    _, found = through_the_stages(lm, groups, preset(member, "training.importance_cap=1.1"))
    assert relative_error(found, expected) < 1e-3
    _, corrected = through_the_stages(lm, [[replace(r, replayed=False) for r in g] for g in groups], preset(member))
    assert relative_error(corrected, expected) > 0.05


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(("mode", "floor"), [("truncate", 0.0), ("mask", 0.0), ("mask", 0.8)])
def test_the_correction_of_the_engines_log_probs_is_its_formula_and_spares_replayed_rows(lm, level, mode, floor):
    groups = hand_made(lm, own=0.1, shared=0.0, engine=0.3, replayed=[0])
    cap = 1.2

    def weights(response: Response) -> torch.Tensor:
        if response.replayed:
            return torch.ones(len(response.behavior))
        distances = torch.tensor(response.behavior) - torch.tensor(response.engine)
        means = {"sequence": distances.sum(), "geometric": distances.mean()}
        ratio = distances.exp() if level == "token" else means[level].exp().expand(len(distances))
        if mode == "truncate":
            return ratio.clamp(max=cap)
        return torch.where((ratio > cap) | (ratio < floor), 0.0, ratio)

    def formula():
        total, count = torch.zeros(()), 0
        for group in groups:
            for response, advantage in zip(group, standardized(rewards_of(group)), strict=True):
                tokens = weights(response) * clipped(ratios(lm, response), float(advantage), 0.2, 0.28)
                total, count = total + tokens.sum(), count + len(tokens)
        return total / count

    loss, expected = of_formula(lm, formula)
    config = preset(
        "grpo",
        "training.beta=0",
        "training.loss_aggregation=token",
        "training.clip_high=0.28",
        f"training.importance_cap={cap}",
        f"training.importance_level={level}",
        f"training.importance_mode={mode}",
        f"training.importance_floor={floor}",
    )
    statistics, found = through_the_stages(lm, groups, config)
    assert relative_error(found, expected) < 1e-4
    assert statistics.loss == pytest.approx(loss, rel=1e-3, abs=1e-6)
