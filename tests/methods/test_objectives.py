"""SAPO, DPPO and GMPO, token by token with scalars, gradients by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.losses.base import LossSettings
from tests.maths.losses import policy_loss
from tests.maths.strategies import repeatable
from tests.maths.test_loss_variants import rows


def sapo(new, old, advantage, settings):
    tau = 1.0 if advantage > 0 else 1.05
    ratio = math.exp(new - old)
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return 4 / tau * gate * advantage, 4 * gate * (1 - gate) * ratio * advantage, False


def dppo(new, old, advantage, settings):
    p, q, ratio = math.exp(new), math.exp(old), math.exp(new - old)
    if settings.objective_options.get("divergence") == "kl":
        rest = (1 - q) * math.log((1 - q) / (1 - p)) if q < 1 and p < 1 else math.inf if q < 1 else 0.0
        distance, threshold = q * (old - new) + rest, 0.05
    else:
        distance, threshold = abs(p - q), 0.15
    away = (ratio > 1 and advantage > 0) or (ratio < 1 and advantage < 0)
    weight = 0.0 if away and distance > threshold else min(ratio, 20.0)
    return weight * advantage * new, weight * advantage, away and distance > threshold


SETTINGS = [
    (sapo, LossSettings(objective="sapo")),
    (dppo, LossSettings(objective="dppo")),
    (dppo, LossSettings(objective="dppo", objective_options={"divergence": "kl"})),
]


@pytest.mark.parametrize(("formula", "settings"), SETTINGS)
@repeatable
@given(rows())
def test_a_token_has_the_formulas_value_and_gradient(formula, settings, drawn):
    lengths, columns = drawn
    new, old, advantages, weights = (column.tolist() for column in columns)
    expected = [formula(*token, settings) for token in zip(new, old, advantages, strict=True)]
    logprobs = columns[0].clone().requires_grad_(True)
    loss, sums = policy_loss(logprobs, *columns[1:], settings=settings, lengths=lengths)
    loss.backward()
    assert loss.item() == pytest.approx(-sum(w * e[0] for w, e in zip(weights, expected, strict=True)), abs=1e-9)
    slopes = [-w * e[1] for w, e in zip(weights, expected, strict=True)]
    np.testing.assert_allclose(logprobs.grad.numpy(), slopes, atol=1e-9)
    assert sums["clipped"].item() == sum(e[2] for e in expected)


@repeatable
@given(rows(), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_gmpo_is_the_geometric_mean_of_clipped_ratios(drawn, low, high):
    lengths, columns = drawn
    new, old, advantages, weights = (column.tolist() for column in columns)
    total, slopes, clipped, start = 0.0, [], 0, 0
    for length in lengths:
        row = range(start, start + length)
        start += length
        logs = [new[t] - old[t] for t in row]
        advantage = advantages[row[0]] if length else 0.0
        beyond = [(x > high and advantage > 0) or (x < -low and advantage < 0) for x in logs]
        bounded = [min(max(x, -low), high) if out else x for x, out in zip(logs, beyond, strict=True)]
        # The product to the power of 1 / length, as the paper writes it.
        mean = math.prod(math.exp(x) for x in bounded) ** (1 / length) if length else 0.0
        total += sum(weights[t] for t in row) * mean * advantage
        share = sum(weights[t] for t in row) * mean * advantage / max(1, length)
        slopes += [0.0 if out else -share for out in beyond]
        clipped += sum(beyond)
    logprobs = columns[0].clone().requires_grad_(True)
    settings = LossSettings(objective="gmpo", clip_low=low, clip_high=high)
    loss, sums = policy_loss(logprobs, *columns[1:], settings=settings, lengths=lengths)
    loss.backward()
    assert loss.item() == pytest.approx(-total, abs=1e-9)
    np.testing.assert_allclose(logprobs.grad.numpy(), slopes, atol=1e-9)
    assert sums["clipped"].item() == clipped


def test_gmpo_takes_each_tokens_own_advantage():
    """One token pulls up past its bound, one down past its own, one has nothing to say."""
    logs = torch.tensor([1.0, -2.0, 5.0], requires_grad=True)
    settings = LossSettings(objective="gmpo", clip_low=0.4, clip_high=0.4)
    advantages = torch.tensor([1.0, -1.0, 0.0])
    loss, sums = policy_loss(logs, torch.zeros(3), advantages, torch.ones(3), settings=settings, lengths=[3])
    assert loss.item() == pytest.approx(0.0) and sums["clipped"] == 2
    both = torch.tensor([0.1, -0.2, 5.0], requires_grad=True)
    loss, _ = policy_loss(
        both, torch.zeros(3), torch.tensor([2.0, -1.0, 0.0]), torch.ones(3), settings=settings, lengths=[3]
    )
    loss.backward()
    mean = math.exp((0.1 - 0.2) / 3)
    assert loss.item() == pytest.approx(-mean * (2 - 1))
    assert both.grad.tolist() == pytest.approx([-mean / 3, -mean / 3, 0.0])


def test_gmpos_gradient_reaches_a_token_that_has_all_but_vanished():
    logprobs = torch.tensor([-95.0, -1.0], requires_grad=True)
    settings = LossSettings(objective="gmpo", clip_low=0.4, clip_high=0.4)
    policy_loss(logprobs, torch.zeros(2), torch.ones(2), torch.ones(2), settings=settings, lengths=[2])[0].backward()
    assert logprobs.grad[0] == logprobs.grad[1] < 0


def test_ma_rlhf_keeps_or_silences_an_n_gram_by_the_product_of_its_ratios():
    """Two responses in n-grams of two: products of e^0.15, e^-0.3, and e^0.3, which is beyond 1.2."""
    logprobs = torch.tensor([0.1, 0.05, -0.3, 0.1, 0.2], dtype=torch.float64, requires_grad=True)
    settings = LossSettings(objective="ma_rlhf", clip_low=0.2, clip_high=0.2, objective_options={"tokens": 2})
    advantages = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    zeros, ones = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    loss, sums = policy_loss(logprobs, zeros, advantages, ones, settings=settings, lengths=[3, 2])
    loss.backward()
    first, last = 2 * math.exp(0.15), 2 * math.exp(-0.3)
    assert loss.item() == pytest.approx(-(first + last + 1.2)) and sums["clipped"] == 2
    assert logprobs.grad.tolist() == pytest.approx([-first, -first, -last, 0, 0])


def test_dppo_lets_rare_tokens_grow_that_a_ratio_would_stop_and_stops_likely_ones_that_it_lets_through():
    rare, likely = (0.001, 0.01), (0.8, 0.64)  # tenfold; and by a fifth, which is at the edge of PPO's range
    for (before, after), advantage, silenced in ((rare, 1.0, False), (likely, -1.0, True), (likely, 1.0, False)):
        new = torch.tensor([after]).log().requires_grad_(True)
        arguments = (torch.tensor([before]).log(), torch.tensor([advantage]), torch.ones(1))
        _, sums = policy_loss(new, *arguments, settings=LossSettings(objective="dppo"), lengths=[1])
        assert sums["clipped"].item() == silenced
    ppo = policy_loss(new, *arguments, settings=LossSettings(clip_low=0.2001), lengths=[1])[1]
    assert ppo["clipped"].item() == 0


def test_a_threshold_of_ones_own_replaces_the_divergences():
    def silenced(**options):
        logprobs, old = torch.tensor([0.6]).log(), torch.tensor([0.5]).log()
        settings = LossSettings(objective="dppo", objective_options=options)
        return policy_loss(logprobs, old, torch.ones(1), torch.ones(1), settings=settings, lengths=[1])[1]["clipped"]

    assert [silenced(), silenced(threshold=0.09), silenced(threshold=0.11)] == [0, 1, 0]
    assert [silenced(divergence="kl"), silenced(divergence="kl", threshold=0.01)] == [0, 1]


@pytest.mark.parametrize("objective", ["sapo", "dppo", "gmpo", "ma_rlhf"])
def test_what_an_objective_does_not_take_is_one_line(objective):
    with pytest.raises(
        ConfigError, match=rf"^training.dual_clip: has no effect with training.objective={objective}, which bounds"
    ):
        load(None, [f"training.objective={objective}", "training.dual_clip=3"], GRPOConfig)
    overrides = [f"training.objective={objective}", "training.ratio_level=sequence"]
    if objective == "sapo":
        load(None, overrides, GRPOConfig)
        return
    with pytest.raises(ConfigError, match=r"^training.ratio_level: sequence has no effect with .*ratio_level=token$"):
        load(None, overrides, GRPOConfig)
