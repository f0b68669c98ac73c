"""Turns that were sampled after contexts of their own are one row, and do not see each other."""

import numpy as np
import pytest
import torch

from algorithms.learner.batch import TrainingSample, packed_batch, padded_batch
from algorithms.learner.flops import AttentionShape, ModelShape, scoring_cost, update_cost
from algorithms.learner.forward import ForwardSettings, microbatches, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings

from .conftest import VOCABULARY
from .hand_joined import joined

SHAPES = [(4, 6), (9, 3), (5, 8)]  # context and turn


def sequences(seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for context, turn in SHAPES:
        mask = np.repeat([False, True], [context, turn])
        logprobs = rng.normal(-4, 0.5, turn).astype(np.float32)
        tokens = rng.integers(0, VOCABULARY, context + turn).astype(np.int32)
        made.append(TrainingSample(tokens, mask, 0.7, 0.05, logprobs, logprobs))
    return made


def gradient(lm, rows, budget=1000):
    lm.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(lm, rows, ForwardSettings(token_budget=budget), LossSettings())
    return statistics, torch.cat([parameter.grad.flatten() for parameter in lm.parameters()])


def test_a_row_gives_back_its_sequences():
    rows = sequences()
    for (tokens, mask), row in zip(joined(rows).sequences, rows, strict=True):
        assert (tokens == row.tokens).all() and (mask == row.loss_mask).all()
    assert len(rows[0].sequences) == 1


def test_each_turn_is_scored_after_its_own_context(lm):
    rows, other = sequences(), sequences(seed=1)[0]
    alone = [score(lm, [row], ForwardSettings(), entropy=True)[0] for row in rows]
    first, (logprobs, entropies) = score(lm, [other, joined(rows)], ForwardSettings(), entropy=True)
    assert np.abs(logprobs - np.concatenate([one[0] for one in alone])).max() < 1e-5
    assert np.abs(entropies - np.concatenate([one[1] for one in alone])).max() < 1e-5
    assert np.abs(first[0] - score(lm, [other], ForwardSettings(), entropy=False)[0][0]).max() < 1e-5


@pytest.mark.parametrize("budget", [1000, 1])
def test_its_gradient_is_that_of_its_turns_as_rows(lm, budget):
    rows = sequences()
    apart, expected = gradient(lm, rows)
    together, found = gradient(lm, [joined(rows)], budget)
    assert together.loss == pytest.approx(apart.loss, rel=1e-5)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert together.passed_tokens == sum(map(sum, SHAPES)) and together.tokens == sum(turn for _, turn in SHAPES)


def test_what_a_batch_holds_and_costs_is_counted_without_the_separators(padded_lm):
    rows, device = sequences(), torch.device("cpu")
    row = joined(rows)
    assert padded_batch([row], device).tokens.shape == (3, 13)
    assert packed_batch([row], device).tokens.shape == (1, 35)
    # Three stacked sequences of up to 13: 39 slots, of which two do not fit into 77.
    assert microbatches(padded_lm, [row, row], ForwardSettings(token_budget=77)) == [[0], [1]]
    shape = ModelShape(weights=100, head=50, layers=(AttentionShape(8),), trained=True)
    assert update_cost(shape, row, reference=False) == sum(update_cost(shape, one, reference=False) for one in rows)
    assert scoring_cost(shape, row) == sum(scoring_cost(shape, one) for one in rows)


def test_a_context_without_a_token_is_an_error(lm):
    row = joined(sequences())
    row.loss_mask[11] = True  # the first token after the separator
    with pytest.raises(ValueError, match="nothing predicts it"):
        score(lm, [row], ForwardSettings(), entropy=False)
