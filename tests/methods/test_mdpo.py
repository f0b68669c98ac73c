"""MDPO: its estimate of a divergence against the exact one, and its step sizes."""

import math
from types import SimpleNamespace

import pytest
import torch

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.losses.proximity import Proximity
from algorithms.losses.term import POLICY, term
from algorithms.methods.mdpo import Mdpo, MdpoSettings


def test_a_token_that_became_twice_as_likely_costs_2_log_2_minus_1():
    logprobs = torch.tensor([math.log(2.0), 0.0, 30.0]).requires_grad_()
    values = Proximity().token_loss(logprobs, torch.zeros(3))
    assert values[:2].tolist() == pytest.approx([2 * math.log(2) - 1, 0.0])
    values.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([2 * math.log(2), 0.0, 0.0])


def test_over_what_the_old_policy_samples_it_is_the_divergence_and_its_gradient():
    old = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = torch.tensor([0.1, 1.0, -0.4], dtype=torch.float64, requires_grad=True)
    new = logits.log_softmax(-1)
    exact = sum(new[i].exp() * (new[i] - math.log(old[i])) for i in range(3))
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    estimate = (old * Proximity().token_loss(new, old.log())).sum()
    (found,) = torch.autograd.grad(estimate, logits)
    assert estimate.item() == pytest.approx(exact.item()) and found.tolist() == pytest.approx(expected.tolist())


def weights(steps, count, scheduled=2, **settings):
    """The weight of the divergence in each of some steps, of a fresh and a replayed sample."""
    config = SimpleNamespace(measured=SimpleNamespace(run_steps=steps), schedule_steps=scheduled)
    given = SimpleNamespace(config=config)
    found = []
    for step in range(count):
        one = Mdpo(MdpoSettings(**settings), given)
        samples = [Sample(SimpleNamespace(), 0.0), Sample(SimpleNamespace(), 0.0, replayed=True)]
        one.before_update(StepBatch(step, groups=[Group(Prompt("q"), samples)]))
        assert samples[1].terms == {POLICY: 1.0} and samples[0].terms[POLICY] == 1.0
        found.append(samples[0].terms[term("proximity")])
    return found


def test_step_sizes_fall_linearly_over_the_run_and_stay_where_it_has_no_end():
    assert weights(4, 5) == pytest.approx([1, 4 / 3, 2, 4, 4])
    assert weights(4, 2, step_size=0.5) == pytest.approx([2, 8 / 3])
    assert weights(4, 2, anneal=False) == weights(None, 2, scheduled=None) == [1.0, 1.0]
    assert weights(None, 3) == pytest.approx([1, 2, 2]), "the schedule of the rate, where the run has no end"
