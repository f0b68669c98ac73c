import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.losses.base import LossSettings
from algorithms.losses.kl import KL, kl_estimates
from algorithms.losses.token_weights import loss_weights
from tests.maths.losses import policy_loss

from .strategies import repeatable, seeds

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def clipped_loss(logprobs, *columns, **keywords):
    """The default loss, all tokens in one row."""
    return policy_loss(logprobs, *columns, settings=LossSettings(**CLIP), lengths=[len(logprobs)], **keywords)


def kl_penalty(logprobs, reference, weights):
    """The default penalty."""
    return (weights.detach() * KL().token_loss(logprobs, reference)).sum()


@st.composite
def tokens(draw, columns=5, max_size=12):
    """Draw [columns, N]: log-probs, old log-probs, advantages, weights, importance weights."""
    size = draw(st.integers(0, max_size))
    values = draw(hnp.arrays(np.float64, (columns, size), elements=st.floats(-2.0, 2.0, width=32)))
    values[:2] = -np.abs(values[:2])
    values[3:] = np.abs(values[3:])
    return [torch.tensor(row, dtype=torch.float64) for row in values]


def naive_loss_and_gradient(logprobs, old, advantages, weights, importance_weights, clip_low, clip_high):
    """Go token by token with scalars, the gradient by hand."""
    loss, gradient, clipped = 0.0, [], 0
    for new, before, advantage, weight, correction in zip(
        *(column.tolist() for column in (logprobs, old, advantages, weights, importance_weights)), strict=True
    ):
        ratio = math.exp(new - before)
        bounded = min(max(ratio, 1 - clip_low), 1 + clip_high)
        objective = min(ratio * advantage, bounded * advantage)
        silenced = bounded * advantage < ratio * advantage
        loss -= weight * correction * objective
        gradient.append(0.0 if silenced else -weight * correction * advantage * ratio)
        clipped += silenced
    return loss, gradient, clipped


@repeatable
@given(tokens(), st.booleans())
def test_matches_a_naive_recomputation_value_and_gradient(columns, corrected):
    logprobs, old, advantages, weights, importance_weights = columns
    if not corrected:
        importance_weights = torch.ones_like(weights)
    expected, gradient, clipped = naive_loss_and_gradient(*columns[:4], importance_weights, **CLIP)
    logprobs.requires_grad_(True)
    loss, sums = clipped_loss(logprobs, old, advantages, weights, importance=importance_weights if corrected else None)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(logprobs.grad.numpy(), gradient, atol=1e-9)
    assert sums["clipped"].item() == clipped
    assert not sums["clipped"].requires_grad


def test_the_clip_silences_only_the_side_that_pays():
    ratios = torch.tensor([0.5, 0.5, 1.5, 1.5, 1.1, 0.9])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    logprobs = ratios.log().requires_grad_(True)
    loss, sums = clipped_loss(logprobs, torch.zeros(6), advantages, torch.ones(6))
    loss.backward()
    np.testing.assert_array_equal(logprobs.grad.numpy() == 0, [False, True, True, False, False, False])
    assert sums["clipped"].item() == 2


@repeatable
@given(tokens(), seeds)
def test_any_split_into_microbatches_adds_up_to_the_same(columns, seed):
    logprobs, old, advantages, weights, importance_weights = columns

    def totals(parts):
        leaf = logprobs.clone().requires_grad_(True)
        loss, counts = torch.zeros((), dtype=torch.float64), {}
        for part in parts:
            part_loss, sums = clipped_loss(
                leaf[part], old[part], advantages[part], weights[part], importance=importance_weights[part]
            )
            part_loss = part_loss + kl_penalty(leaf[part], old[part], weights[part])
            part_loss.backward()
            loss = loss + part_loss.detach()
            counts = {name: counts.get(name, 0.0) + value.item() for name, value in sums.items()}
        return loss.item(), leaf.grad.numpy(), counts

    rng = np.random.default_rng(seed)
    order = torch.tensor(rng.permutation(len(logprobs)), dtype=torch.long)
    bounds = sorted(rng.integers(0, len(order) + 1, size=3).tolist())
    whole, split = totals([order]), totals(torch.tensor_split(order, bounds))
    assert split[0] == pytest.approx(whole[0], abs=1e-9)
    np.testing.assert_allclose(split[1], whole[1], atol=1e-12)
    assert split[2] == pytest.approx(whole[2], abs=1e-5)


@pytest.mark.parametrize("loss_aggregation", ["token", "response", "constant"])
def test_weights_of_the_step_make_the_loss_independent_of_how_rows_are_dealt_out(loss_aggregation):
    rng = np.random.default_rng(3)
    lengths, groups = np.array([5, 2, 0, 7, 1]), np.array([0, 0, 0, 1, 1])
    weights = loss_weights(lengths, groups, loss_aggregation=loss_aggregation, max_response_tokens=8)
    rows = [torch.tensor(rng.normal(size=(2, length))) - 2.0 for length in lengths]
    advantages = rng.normal(size=5)

    def loss_of(rows_of_a_learner):
        logprobs = torch.cat([rows[row][0] for row in rows_of_a_learner])
        old = torch.cat([rows[row][1] for row in rows_of_a_learner])

        def by_token(per_row):
            values = [torch.full((lengths[row],), per_row[row]) for row in rows_of_a_learner]
            return torch.cat(values).double()

        return clipped_loss(logprobs, old, by_token(advantages), by_token(weights))[0].item()

    everything = loss_of([0, 1, 2, 3, 4])
    assert loss_of([3]) + loss_of([0, 4]) + loss_of([2, 1]) == pytest.approx(everything, abs=1e-6)


def test_an_unchanged_policy_has_ratios_of_exactly_one_and_the_plain_policy_gradient():
    logprobs = (-torch.rand(50) * 5).requires_grad_(True)
    advantages, weights = torch.randn(50), torch.rand(50)
    loss, sums = clipped_loss(logprobs, logprobs.detach().clone(), advantages, weights)
    loss.backward()
    assert sums["clipped"].item() == 0.0
    torch.testing.assert_close(logprobs.grad, -weights * advantages)


@pytest.mark.parametrize("distance", [-1e4, -90.0, 90.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_absurd_ratios_stay_finite(distance, advantage):
    logprobs = torch.tensor([distance], requires_grad=True)
    loss, sums = clipped_loss(logprobs, torch.zeros(1), torch.tensor([advantage]), torch.ones(1))
    (loss + kl_penalty(logprobs, torch.zeros(1), torch.ones(1))).backward()
    assert torch.isfinite(loss) and torch.isfinite(logprobs.grad).all()
    assert all(torch.isfinite(value) for value in sums.values())


def test_tokens_without_weight_or_advantage_get_exactly_no_gradient():
    logprobs = torch.tensor([-1.0, -80.0, -0.5, -3.0], requires_grad=True)
    old = torch.tensor([-2.0, -1.0, -100.0, -3.0])
    advantages, weights = torch.tensor([1.0, 1.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 1.0])
    loss, _ = clipped_loss(logprobs, old, advantages, weights)
    loss = loss + kl_penalty(logprobs, old, torch.zeros(4))
    loss.backward()
    np.testing.assert_array_equal(logprobs.grad.numpy(), 0.0)


def test_gradients_flow_through_the_policys_logprobs_alone():
    columns = [(-torch.rand(4)).requires_grad_(True) for _ in range(5)]
    loss, _ = clipped_loss(*columns[:4], importance=columns[4])
    (loss + kl_penalty(columns[0], columns[1], columns[3])).backward()
    assert columns[0].grad is not None
    assert all(column.grad is None for column in columns[1:])


@repeatable
@given(tokens(columns=4))
def test_the_kl_penalty_is_k3(columns):
    logprobs, reference, _, weights = columns
    logprobs.requires_grad_(True)
    penalty = kl_penalty(logprobs, reference, weights)
    penalty.backward()
    difference = reference - logprobs.detach()
    expected = weights * (difference.exp() - 1 - difference)
    assert penalty.item() == pytest.approx(expected.sum().item(), abs=1e-9)
    assert penalty.item() >= -1e-12
    np.testing.assert_allclose(logprobs.grad.numpy(), (weights * (1 - difference.exp())).numpy(), atol=1e-9)


def test_k3_estimates_the_kl_divergence_without_bias():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    exact = (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close(kl_penalty(policy, reference, policy.exp()), exact)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_what_an_estimator_expects_as_a_value_and_as_a_gradient(estimator):
    """Over a whole vocabulary: values of k1 and k3 are the KL; in a loss k2 moves along it, k3 along the reverse."""
    logits = torch.tensor([0.5, -1.0, 0.2, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.3, -0.7, 1.0], dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    sampled = policy.detach().exp()  # a token comes as often as this, and that is no part of a loss
    estimate = kl_estimates(policy, reference, estimator)
    (found,) = torch.autograd.grad((sampled * estimate).sum(), logits, retain_graph=True)
    kl = (policy.exp() * (policy - reference)).sum()
    reverse = (reference.exp() * (reference - policy)).sum()
    (forward,), (backward,) = (torch.autograd.grad(each, logits, retain_graph=True) for each in (kl, reverse))
    expected = {"k1": torch.zeros(4, dtype=torch.float64), "k2": forward, "k3": backward}
    torch.testing.assert_close(found, expected[estimator])
    value = (sampled * estimate).sum().detach()
    if estimator == "k2":
        torch.testing.assert_close(value, (sampled * (policy - reference) ** 2 / 2).sum().detach())
    else:
        torch.testing.assert_close(value, kl.detach())


def test_there_are_three_estimators():
    with pytest.raises(ValueError, match="estimator must be k1, k2 or k3, got 'k4'"):
        kl_estimates(torch.zeros(1), torch.zeros(1), "k4")


def test_refuses_shapes_that_would_broadcast():
    flat, column = torch.zeros(3), torch.zeros(3, 1)
    with pytest.raises(ValueError, match="one length"):
        clipped_loss(flat, column, flat, flat)
    with pytest.raises(ValueError, match="one length"):
        kl_penalty(column, column, column)
