"""The members of the family, row by row and token by token with scalars, gradients by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.learner.batch import TrainingSample
from algorithms.learner.loss import LossInputs, token_loss
from algorithms.losses.base import LossSettings
from algorithms.losses.term import term
from tests.maths.losses import policy_loss

from .strategies import repeatable

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


@st.composite
def rows(draw):
    """Row lengths, and [4, N]: log-probs, old log-probs, advantages, weights; the last two the same in a row."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    size = sum(lengths)
    logprobs = draw(hnp.arrays(np.float64, (2, size), elements=st.floats(-2.0, 0.0, width=32)))
    per_row = draw(hnp.arrays(np.float64, (2, len(lengths)), elements=st.floats(-2.0, 2.0, width=32)))
    columns = [*logprobs, np.repeat(per_row[0], lengths), np.repeat(np.abs(per_row[1]), lengths)]
    return lengths, [torch.tensor(column, dtype=torch.float64) for column in columns]


def by_hand(lengths, columns, settings):
    """Loss, the gradient of each token and the number of clipped tokens."""
    new, old, advantages, weights = (column.tolist() for column in columns)
    loss, gradient, clipped, start = 0.0, [], 0, 0
    for length in lengths:
        row = range(start, start + length)
        start += length
        distances = [new[t] - old[t] for t in row]
        mean = sum(distances) / max(1, length)
        row_gradient = [0.0] * length
        for place, t in enumerate(row):
            ratio = math.exp(mean if settings.ratio_level == "sequence" else distances[place])
            bounded = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
            advantage = advantages[t]
            if settings.objective == "cispo":
                loss -= weights[t] * bounded * advantage * new[t]
                row_gradient[place] -= weights[t] * bounded * advantage
                clipped += bounded != ratio
                continue
            value = slope = ratio * advantage
            if bounded * advantage < value:
                value, slope = bounded * advantage, 0.0
            if settings.dual_clip is not None and advantage < 0 and value < settings.dual_clip * advantage:
                value, slope = settings.dual_clip * advantage, 0.0
            loss -= weights[t] * value
            clipped += value != ratio * advantage
            # d exp(mean) / d logprob of any token of the row is exp(mean) / length.
            share = 1 / length if settings.ratio_level == "sequence" else 0.0
            for other in range(length):
                row_gradient[other] -= weights[t] * slope * (share or float(other == place))
        gradient += row_gradient
    return loss, gradient, clipped


VARIANTS = [
    LossSettings(**CLIP),
    LossSettings(**CLIP, dual_clip=1.5),
    LossSettings(**CLIP, dual_clip=1.1),
    LossSettings(**CLIP, ratio_level="sequence"),
    LossSettings(**CLIP, ratio_level="sequence", dual_clip=1.5),
    LossSettings(clip_low=1.0, clip_high=0.5, objective="cispo"),
    LossSettings(**CLIP, objective="cispo"),
    LossSettings(**CLIP, objective="cispo", ratio_level="sequence"),
]
# Those of other files, which have their formulas in tests/methods.
EVERY = [
    *VARIANTS,
    LossSettings(objective="sapo"),
    LossSettings(objective="dppo"),
    LossSettings(objective="dppo", objective_options={"divergence": "kl"}),
    LossSettings(objective="gmpo", clip_low=0.4, clip_high=0.4),
]


@pytest.mark.parametrize("settings", VARIANTS)
@repeatable
@given(rows())
def test_every_member_is_its_formula_value_and_gradient(settings, drawn):
    lengths, columns = drawn
    expected, gradient, clipped = by_hand(lengths, columns, settings)
    logprobs = columns[0].clone().requires_grad_(True)
    loss, sums = policy_loss(logprobs, *columns[1:], settings=settings, lengths=lengths)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(logprobs.grad.numpy(), gradient, atol=1e-9)
    assert sums["clipped"].item() == clipped


@pytest.mark.parametrize("settings", EVERY)
def test_any_split_of_the_rows_adds_up(settings):
    rng = np.random.default_rng(5)
    lengths = [3, 1, 4, 2]
    columns = [torch.tensor(rng.normal(size=10)) for _ in range(4)]

    def loss_of(numbers):
        tokens = torch.cat([torch.arange(sum(lengths[:n]), sum(lengths[: n + 1])) for n in numbers])
        parts = [column[tokens] for column in columns]
        return policy_loss(*parts, settings=settings, lengths=[lengths[n] for n in numbers])[0].item()

    assert loss_of([2]) + loss_of([3, 0]) + loss_of([1]) == pytest.approx(loss_of([0, 1, 2, 3]), abs=1e-9)


@pytest.mark.parametrize("settings", EVERY)
def test_an_unchanged_policy_has_the_plain_policy_gradient(settings):
    """So with one optimizer step on fresh rows all members differ by advantage and normalization alone."""
    torch.manual_seed(0)
    logprobs = (-torch.rand(9) * 5).requires_grad_(True)
    advantages, weights = torch.randn(3).repeat_interleave(3), torch.rand(3).repeat_interleave(3)
    loss, sums = policy_loss(
        logprobs, logprobs.detach().clone(), advantages, weights, settings=settings, lengths=[3, 3, 3]
    )
    loss.backward()
    torch.testing.assert_close(logprobs.grad, -weights * advantages)
    assert sums["clipped"].item() == 0


@pytest.mark.parametrize("settings", EVERY)
@pytest.mark.parametrize("distance", [-1e4, -90.0, 90.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_absurd_ratios_stay_finite(settings, distance, advantage):
    logprobs = torch.full((2,), distance, requires_grad=True)
    loss, sums = policy_loss(
        logprobs, torch.zeros(2), torch.full((2,), advantage), torch.ones(2), settings=settings, lengths=[2]
    )
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logprobs.grad).all()
    assert all(torch.isfinite(value) for value in sums.values())


def test_a_dual_clip_silences_what_runs_away_downwards_and_nothing_else():
    ratios, advantages = torch.tensor([4.0, 2.0, 4.0]), torch.tensor([-1.0, -1.0, 1.0])
    gradients = {}
    for dual_clip in (None, 3.0):
        logprobs = ratios.log().requires_grad_(True)
        settings = LossSettings(clip_low=0.2, clip_high=9.0, dual_clip=dual_clip)
        policy_loss(logprobs, torch.zeros(3), advantages, torch.ones(3), settings=settings, lengths=[3])[0].backward()
        gradients[dual_clip] = logprobs.grad.tolist()
    assert gradients[None] == pytest.approx([4.0, 2.0, -4.0])
    assert gradients[3.0] == pytest.approx([0.0, 2.0, -4.0])


def test_the_settings_say_whether_tokens_stand_alone():
    assert LossSettings().token_local
    assert LossSettings(objective="cispo", importance_mode="mask").token_local
    assert not LossSettings(ratio_level="sequence").token_local
    assert not LossSettings(importance_level="sequence").token_local
    assert not LossSettings(importance_level="geometric").token_local
    assert LossSettings(importance_level="sequence", importance_cap=0.0).token_local


@pytest.mark.parametrize("settings", [variant for variant in EVERY if variant.token_local])
def test_token_local_losses_do_not_look_at_rows(settings):
    columns = [torch.tensor(row) for row in np.random.default_rng(2).normal(size=(4, 6))]
    whole = policy_loss(*columns, settings=settings, lengths=[6])[0]
    torch.testing.assert_close(policy_loss(*columns, settings=settings, lengths=[1, 3, 2])[0], whole)


def test_refuses_rows_that_do_not_add_up():
    flat = torch.zeros(3)
    with pytest.raises(ValueError, match="lengths add up to 4, there are 3 tokens"):
        policy_loss(flat, flat, flat, flat, settings=LossSettings(), lengths=[2, 2])


@repeatable
@given(rows(), st.sampled_from([1.1, 1.5]), st.sampled_from([None, 1.3]))
def test_a_rows_own_bound_holds_for_it_alone_and_the_tighter_one_of_two(drawn, bound, bound_of_all):
    lengths, columns = drawn
    assume(sum(lengths))
    settings = LossSettings(**CLIP, dual_clip=bound_of_all, importance_cap=0.0)
    numbers = np.split(np.stack([column.numpy() for column in columns]).astype(np.float32), np.cumsum(lengths)[:-1], 1)
    own = [term("policy", dual_clip=bound), *[term("policy")] * len(lengths)]
    made = [
        TrainingSample(
            np.arange(length + 1, dtype=np.int32),
            np.arange(length + 1) > 0,
            advantage,
            float(weight[0]) if length else 0.0,
            old,
            terms={each: 1.0},
        )
        for length, (_, old, advantage, weight), each in zip(lengths, numbers, own, strict=False)
    ]
    logprobs = torch.tensor(np.concatenate([part[0] for part in numbers]), requires_grad=True)
    loss, sums = token_loss(logprobs, None, LossInputs.of(made, torch.device("cpu"), settings), settings)
    loss.backward()
    tighter = bound if bound_of_all is None else min(bound, bound_of_all)
    split = [(lengths[:1], slice(0, lengths[0]), tighter), (lengths[1:], slice(lengths[0], None), bound_of_all)]
    parts = [
        by_hand(some, [column[tokens] for column in columns], LossSettings(**CLIP, dual_clip=dual_clip))
        for some, tokens, dual_clip in split
    ]
    assert loss.item() == pytest.approx(sum(value for value, _, _ in parts), rel=1e-4, abs=1e-4)
    slopes = [slope for _, row, _ in parts for slope in row]
    np.testing.assert_allclose(logprobs.grad.numpy(), slopes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", ["cispo", "sapo", "dppo", "gmpo"])
def test_an_objective_that_bounds_ratios_itself_takes_no_rows_dual_clip(objective):
    columns = [torch.tensor([0.0, 0.0]), torch.full((2,), -3.0), -torch.ones(2), torch.ones(2)]
    plain, bounded = (
        policy_loss(*columns, settings=LossSettings(objective=objective, dual_clip=own), lengths=[2])[0]
        for own in (None, 1.1)
    )
    assert plain == bounded
