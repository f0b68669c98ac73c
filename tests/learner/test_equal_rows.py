"""Equal responses are computed once, and rows that are only measured train nothing."""

from dataclasses import replace

import numpy as np
import pytest

from algorithms.grpo.samples import measuring_row
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.learner.forward import ForwardSettings, score
from algorithms.losses.base import LossSettings

from .recomputation import relative_error
from .test_loss_and_gradient import gradient_of, rows_of

METHODS = [
    {"objective": "sapo"},
    {"objective": "dppo", "objective_options": {"threshold": 0.01}},
    {"objective": "gmpo"},
    {"importance_level": "geometric", "importance_mode": "mask"},
]
PENALTIES = [{"beta": 0.2, "kl_estimator": estimator} for estimator in ("k1", "k2", "k3")]


LOSSES = [{}, {"ratio_level": "sequence"}, {"importance_cap": 1.2}, *METHODS]


@pytest.mark.parametrize(("loss", "penalty"), [*((loss, {}) for loss in LOSSES), *(({}, each) for each in PENALTIES)])
def test_merged_rows_have_the_loss_and_gradient_of_all(lm, reference, groups, loss, penalty):
    rows = rows_of(groups, **penalty)
    # Some twice, one three times, with other weights.
    repeated = [*rows, *(replace(row, weight=2 * row.weight) for row in rows[:5]), rows[0]]
    merged, owners = merge_equal_rows(repeated)
    assert len(merged) == len(rows) and owners == [*range(len(rows)), *range(5), 0]
    settings = LossSettings(clip_low=0.2, clip_high=0.28, **loss)
    expected, whole = gradient_of(lm, repeated, loss=settings, reference=reference)
    found, once = gradient_of(lm, merged, loss=settings, reference=reference)
    assert expected.clipped > 0 or settings.objective == "sapo"
    assert relative_error(once, whole) < 1e-5
    for name in ("loss", "tokens", "trained_tokens", "clipped", "terms", "max_logp_mismatch"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-6), name
    assert found.passed_tokens < expected.passed_tokens


@pytest.mark.parametrize(
    "change",
    [
        {"advantages": 7.0},
        {"old_logprobs": None},
        {"sampling_logprobs": None},
        {"weight": 0.0},
    ],
)
def test_rows_that_differ_in_more_than_their_weight_stay_apart(groups, change):
    row = next(row for row in rows_of(groups) if row.on_policy and row.old_logprobs is not None)
    assert len(merge_equal_rows([row, replace(row, **change)])[0]) == 2
    other = replace(row, tokens=np.where(row.loss_mask, row.tokens + 1, row.tokens))
    assert len(merge_equal_rows([row, other])[0]) == 2


def test_two_policies_that_sampled_the_same_tokens_stay_apart_and_rounding_does_not_count(groups):
    row = next(row for row in rows_of(groups) if row.on_policy)
    sampled = np.full(row.response_length, -0.5, np.float32)
    row = replace(row, sampling_logprobs=sampled)
    assert len(merge_equal_rows([row, replace(row, sampling_logprobs=sampled + np.float32(1e-6))])[0]) == 1
    assert len(merge_equal_rows([row, replace(row, sampling_logprobs=sampled + np.float32(0.05))])[0]) == 2


@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_a_measured_row_gets_log_probs_and_trains_nothing(lm, reference, groups, beta):
    rows = rows_of(groups, beta=beta)
    sample = groups[0].samples[0]
    expected, alone = gradient_of(lm, rows, reference=reference)
    found, together = gradient_of(lm, [*rows, measuring_row(sample)], reference=reference)
    ((logprobs, entropies),) = score(lm, [measuring_row(sample)], ForwardSettings(), entropy=True)
    np.testing.assert_allclose(found.old_logprobs[len(rows)], logprobs, atol=1e-5)
    np.testing.assert_allclose(found.entropies[len(rows)], entropies, atol=1e-5)
    assert relative_error(together, alone) < 1e-6
    for name in ("loss", "tokens", "trained_tokens", "clipped", "terms", "max_logp_mismatch"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5, abs=1e-7), name
