import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.losses.base import LossSettings
from algorithms.losses.token_weights import bounded_tokens, importance_weights

from .strategies import repeatable, seeds

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def by_hand(trainer, engine, lengths, settings):
    weights, start = [], 0
    for length in lengths:
        row = [t - e for t, e in zip(trainer[start : start + length], engine[start : start + length], strict=True)]
        start += length
        whole = math.exp(sum(row))
        of_row = {"sequence": whole, "geometric": whole ** (1 / max(1, length))}
        for ratio in [of_row.get(settings.importance_level, math.exp(distance)) for distance in row]:
            if settings.importance_mode == "truncate":
                weights.append(min(ratio, settings.importance_cap))
            else:
                weights.append(ratio if settings.importance_floor <= ratio <= settings.importance_cap else 0.0)
    return weights


@pytest.mark.parametrize(
    ("level", "mode", "floor"),
    [
        (level, mode, floor)
        for level in ("token", "sequence", "geometric")
        for mode, floor in [("truncate", 0), ("mask", 0), ("mask", 0.5)]
    ],
)
@repeatable
@given(LENGTHS, seeds)
def test_weights_are_bounded_by_token_or_by_response(level, mode, floor, lengths, seed):
    settings = LossSettings(importance_cap=1.5, importance_level=level, importance_mode=mode, importance_floor=floor)
    trainer, engine = -np.abs(np.random.default_rng(seed).normal(size=(2, sum(lengths))))
    found = importance_weights(torch.tensor(trainer), torch.tensor(engine), settings=settings, lengths=lengths)
    np.testing.assert_allclose(found.numpy(), by_hand(trainer, engine, lengths, settings), rtol=1e-9)
    assert not found.requires_grad


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_an_engine_that_agrees_changes_nothing(level, mode):
    logprobs = -torch.rand(6)
    settings = LossSettings(
        importance_level=level, importance_mode=mode, importance_floor=0.9 if mode == "mask" else 0.0
    )
    weights = importance_weights(logprobs, logprobs, settings=settings, lengths=[2, 4])
    assert weights.tolist() == [1.0] * 6


@pytest.mark.parametrize(("mode", "expected"), [("truncate", 2.0), ("mask", 0.0)])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_engines_that_are_worlds_apart_give_finite_weights(level, mode, expected):
    settings = LossSettings(importance_level=level, importance_mode=mode)
    trainer, engine = torch.tensor([-1.0, -1.0]), torch.tensor([-1e4, -1e4])
    assert importance_weights(trainer, engine, settings=settings, lengths=[2]).tolist() == [expected] * 2
    assert importance_weights(engine, trainer, settings=settings, lengths=[2]).tolist() == [0.0] * 2


def test_one_runaway_token_masks_itself_or_its_whole_response():
    engine = torch.tensor([-1.0, -3.0, -1.0, -1.0])
    trainer = torch.full((4,), -1.0)
    by_token = importance_weights(trainer, engine, settings=LossSettings(importance_mode="mask"), lengths=[3, 1])
    assert by_token.tolist() == [1.0, 0.0, 1.0, 1.0]
    settings = LossSettings(importance_mode="mask", importance_level="sequence")
    assert importance_weights(trainer, engine, settings=settings, lengths=[3, 1]).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_the_geometric_mean_does_not_grow_with_the_response():
    """A small mismatch on every token: the product leaves out the long response, the mean neither."""
    lengths = [10, 1000]
    trainer, engine = torch.zeros(sum(lengths)), torch.full((sum(lengths),), -0.005)

    def kept(level):
        settings = LossSettings(importance_mode="mask", importance_level=level, importance_cap=1.2)
        return [
            part.mean().item()
            for part in importance_weights(trainer, engine, settings=settings, lengths=lengths).split(lengths)
        ]

    assert kept("sequence") == pytest.approx([math.exp(0.05), 0.0])
    assert kept("geometric") == pytest.approx([math.exp(0.005)] * 2, rel=1e-4)


def test_no_gradient_flows_through_the_weights():
    logprobs = (-torch.rand(3)).requires_grad_(True)
    assert not importance_weights(logprobs, -torch.rand(3), settings=LossSettings(), lengths=[3]).requires_grad


def test_refuses_a_cap_that_is_no_cap_and_shapes_that_differ():
    flat = torch.zeros(3)
    with pytest.raises(ValueError, match="importance_cap"):
        importance_weights(flat, flat, settings=LossSettings(importance_cap=0.0), lengths=[3])
    with pytest.raises(ValueError, match="one length"):
        importance_weights(flat, torch.zeros(3, 1), settings=LossSettings(), lengths=[3])


@pytest.mark.parametrize(("level", "expected"), [("token", 1), ("sequence", 3)])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_bounded_tokens_are_counted_with_their_response_where_it_is_weighed_as_a_whole(level, mode, expected):
    trainer, engine = torch.full((5,), -1.0), torch.tensor([-1.0, -3.0, -1.0, -1.0, -1.0])
    settings = LossSettings(importance_level=level, importance_mode=mode)
    assert bounded_tokens(trainer, engine, settings=settings, lengths=[3, 2]) == expected


def test_nothing_is_counted_within_the_bounds():
    settings = LossSettings(importance_mode="mask", importance_floor=0.5)
    assert bounded_tokens(torch.zeros(3), torch.tensor([0.5, 0.0, -0.5]), settings=settings, lengths=[3]) == 0
