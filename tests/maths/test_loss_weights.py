import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.losses.token_weights import loss_weights

from .strategies import repeatable

rows = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=20)


def token_losses(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=length) for length in lengths]


def weighted_total(lengths, groups, losses, loss_aggregation, limit=64):
    weights = loss_weights(
        np.array(lengths), np.array(groups), loss_aggregation=loss_aggregation, max_response_tokens=limit
    )
    assert np.isfinite(weights).all()
    return sum(weight * loss.sum() for weight, loss in zip(weights, losses, strict=True))


@repeatable
@given(rows)
def test_token_is_the_mean_over_all_tokens_of_the_step(rows):
    lengths, groups = zip(*rows, strict=True)
    losses = token_losses(lengths)
    expected = np.concatenate(losses).mean() if sum(lengths) else 0.0
    assert weighted_total(lengths, groups, losses, "token") == pytest.approx(expected, abs=1e-12)


@repeatable
@given(rows)
def test_response_is_the_mean_over_tokens_then_the_group_then_the_groups(rows):
    lengths, groups = zip(*rows, strict=True)
    losses = token_losses(lengths)
    by_group = [
        np.mean([loss.mean() if loss.size else 0.0 for loss, g in zip(losses, groups, strict=True) if g == group])
        for group in set(groups)
    ]
    found = weighted_total(lengths, groups, losses, "response")
    assert found == pytest.approx(np.mean(by_group), abs=1e-12)


@repeatable
@given(rows)
def test_constant_divides_the_token_sum_by_rows_times_the_limit(rows):
    lengths, groups = zip(*rows, strict=True)
    losses = token_losses(lengths)
    expected = np.concatenate(losses).sum() / (len(rows) * 64)
    assert weighted_total(lengths, groups, losses, "constant") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss_aggregation", ["token", "response", "constant"])
def test_rows_without_tokens_weigh_nothing(loss_aggregation):
    found = loss_weights(np.array([0, 4]), np.array([0, 1]), loss_aggregation=loss_aggregation, max_response_tokens=8)
    assert found[0] == 0.0 and found[1] > 0.0
    none = loss_weights(np.array([0, 0]), np.array([0, 0]), loss_aggregation=loss_aggregation, max_response_tokens=8)
    np.testing.assert_array_equal(none, [0.0, 0.0])
    empty = np.array([], dtype=np.int64)
    assert loss_weights(empty, empty, loss_aggregation=loss_aggregation, max_response_tokens=8).shape == (0,)


def test_a_row_without_tokens_is_still_a_member_of_its_group():
    found = loss_weights(np.array([0, 4]), np.array([5, 5]), loss_aggregation="response", max_response_tokens=8)
    assert found[1] == 1 / (4 * 2)


@pytest.mark.parametrize(
    ("lengths", "groups", "loss_aggregation", "limit"),
    [
        ([1, 2], [0], "token", 8),
        ([-1], [0], "token", 8),
        ([1], [0], "tokens", 8),
        ([1], [0], "constant", 0),
    ],
)
def test_refuses_bad_input(lengths, groups, loss_aggregation, limit):
    with pytest.raises(ValueError, match="must"):
        loss_weights(np.array(lengths), np.array(groups), loss_aggregation=loss_aggregation, max_response_tokens=limit)
