"""ROVER: errors by hand, its gradient from whole logits, and what the mechanism gives the rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.losses.rover import Rover as RoverTerm
from algorithms.losses.term import POLICY, term
from algorithms.methods.rover import Rover, RoverSettings
from tests.learner.conftest import VOCABULARY, small_model
from tests.learner.recomputation import relative_error

ROVER, OLD = term("rover"), "old_next_vocabulary_logprobs"


def test_a_log_ratio_is_drawn_to_the_advantage_and_the_value_of_what_comes_next():
    """q = 0.5 and 0; targets 1 + (-4 + 4.5) = 1.5 and -1: errors of -1 and 1."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    given = (torch.tensor(values) for values in ([-1.5, -2.0], [1.0, -1.0], [-4.0, 0.0], [-4.5, 0.0]))
    losses = RoverTerm().token_loss(logprobs, *given)
    losses.sum().backward()
    assert losses.tolist() == [1.0, 1.0] and logprobs.grad.tolist() == [-2.0, 2.0]


def table(lm, tokens):
    """Log-probs of the whole vocabulary at each place of some tokens."""
    return (lm(input_ids=torch.tensor(tokens.tolist())[None]).logits[0] / 0.8).log_softmax(-1)


@pytest.mark.parametrize("budget", [10**6, 14])
def test_the_update_is_the_formula_from_whole_logits(budget):
    lm, old = small_model().eval(), small_model(seed=1).eval()
    rng, rows, expected = np.random.default_rng(0), [], torch.zeros(())
    for prompt, response, advantage in ((3, 5, 0.7), (2, 1, -0.4), (4, 6, 0.0)):
        tokens = rng.integers(0, VOCABULARY, prompt + response).astype(np.int32)
        with torch.no_grad():
            new, before = table(lm, tokens), table(old, tokens)
        places = range(prompt - 1, prompt + response - 1)
        own = table(lm, tokens)
        for place in places:
            value = float((new[place + 1] - before[place + 1]).mean()) if place + 1 in places else 0.0
            token = int(tokens[place + 1])
            expected = expected + 0.1 * (own[place, token] - before[place, token] - advantage - value) ** 2
        values = np.array([float(before[place + 1].mean()) for place in places[:-1]] + [0.0], np.float32)
        logprobs = np.array([float(before[place, tokens[place + 1]]) for place in places], np.float32)
        mask = np.repeat([False, True], [prompt, response])
        rows.append(TrainingSample(tokens, mask, advantage, 0.1, logprobs, logprobs, 1, {ROVER: 1.0}, {OLD: values}))
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in lm.named_parameters()}
    lm.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(lm, rows, ForwardSettings(0.8, budget), LossSettings())
    assert statistics.loss == pytest.approx(expected.item(), rel=1e-4)
    assert relative_error({name: p.grad for name, p in lm.named_parameters()}, gradients) < 1e-4


def test_fresh_responses_regress_and_replayed_ones_keep_the_objective():
    def sample(length, replayed=False):
        return Sample(SimpleNamespace(response_length=length), 0.0, replayed=replayed)

    samples = [sample(3), sample(2, replayed=True), sample(0), sample(1)]
    measured = [np.array([-5.0, -6.0, -7.0], np.float32), np.array([-8.0], np.float32)]
    one = Rover(RoverSettings(), SimpleNamespace(score_under=lambda *given: measured))
    one.before_update(StepBatch(0, groups=[Group(Prompt("q"), samples)]))
    assert [each.terms for each in samples] == [{ROVER: 1.0}, {POLICY: 1.0}, {POLICY: 1.0}, {ROVER: 1.0}]
    assert samples[0].inputs[OLD].tolist() == [-6.0, -7.0, 0.0] and samples[3].inputs[OLD].tolist() == [0.0]
    assert one.metrics["rover/tokens"] == 4


def test_a_response_under_a_policy_that_overflowed_keeps_the_objective_whose_step_is_skipped():
    sample = Sample(SimpleNamespace(response_length=2), 0.0)
    one = Rover(RoverSettings(), SimpleNamespace(score_under=lambda *given: [np.full(2, np.nan, np.float32)]))
    one.before_update(StepBatch(0, groups=[Group(Prompt("q"), [sample])]))
    assert sample.terms == {POLICY: 1.0} and not sample.inputs
