"""DPH-RL: its divergences and their gradient by autograd from whole logits, what it keeps, and what it leaves out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import deal_auxiliary, scoring_row
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.methods import dph_rl
from algorithms.methods.dph_rl import DphRl, DphRlSettings
from algorithms.rollout.types import Context, Request, Sampling
from tests.hand_made import answer
from tests.learner.conftest import VOCABULARY, small_model
from tests.learner.recomputation import relative_error

from .simulated import services

UIDS = ["a", "b", "c", "d"]
DIVERGENCES = {
    "forward_kl": lambda u: u - 1 - u.log(),
    "js": lambda u: (1 + u) / 2 - 1 - ((1 + u) / 2).log(),
    "alpha": lambda u: (u**0.8 - 0.8 * u - 0.2) / (0.2 * -0.8),
}


def sampled(uid, *outcomes, seed=0, context=Context.PLAIN, scored=True):
    """A group of these outcomes with log-probs near -3."""
    rng, samples = np.random.default_rng([seed, *uid.encode()]), []
    for outcome in outcomes:
        request = Request(0, Prompt(uid, context), 0, 0, Sampling())
        tokens = rng.integers(2, VOCABULARY, int(rng.integers(2, 7)))
        rollout = answer(request, prompt=[3, 4, 5], response=tokens, correct=bool(outcome))
        old = rng.normal(-3, 0.7, len(tokens)).astype(np.float32) if scored else None
        samples.append(Sample(rollout, float(outcome), old_logprobs=old))
    return Group(Prompt(uid, context), samples)


def mechanism(lm=None, **settings):
    """DPH-RL over a model that scores, or log-probs of -1; `one.scored` counts what was scored."""
    calls = []

    def scored(samples, *, entropy=False):
        for sample in samples:
            calls.append(sample)
            if lm is None:
                sample.old_logprobs = np.full(sample.rollout.response_length, -1.0, np.float32)
            else:
                sample.old_logprobs = score(lm, [scoring_row(sample)], ForwardSettings(), entropy=False)[0][0]

    one = DphRl(DphRlSettings(**settings), services(UIDS, score=scored))
    one.scored, one.metrics = calls, dict(one.tags)
    return one


def step(one, number, *groups, dropped=()):
    """What a step calls; returns the batch and the rows."""
    batch = StepBatch(number, groups=list(groups), dropped=list(dropped))
    one.metrics = dict(one.tags)
    one.compose(batch)
    one.before_update(batch)
    rows = one.auxiliary(batch)
    one.update_history(batch)
    return batch, rows


def trained(batch):
    return [group.prompt.uid for group in batch.groups]


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_gradient_is_that_of_the_divergence_from_whole_logits(divergence, monkeypatch):
    monkeypatch.setattr(dph_rl, "MAX_RATIO", 1e6)
    lm = small_model().eval()
    one = mechanism(lm, divergence=divergence, coefficient=0.3, share=10.0)
    step(one, 0, sampled("a", 1, 1, 1), sampled("b", 1, 1))
    _, rows = step(one, 1, sampled("c", 0, 1))
    assert len(rows) == 5
    lm.zero_grad(set_to_none=True)
    loss = LossSettings.of(TrainingSettings(importance_cap=0.0))
    accumulate_gradients(lm, deal_auxiliary(rows, 0, 1), ForwardSettings(token_budget=40), loss)
    found = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}

    lm.zero_grad(set_to_none=True)
    stored = [s for group in (sampled("a", 1, 1, 1), sampled("b", 1, 1)) for s in group.samples]
    parts = []
    for sample in stored:
        tokens = torch.tensor(sample.rollout.tokens.tolist())
        table = lm(input_ids=tokens[None]).logits[0].log_softmax(-1)
        places = torch.arange(3, len(tokens))
        u = (table[places - 1, tokens[places]] - torch.tensor(sample.old_logprobs)).exp()
        parts.append(DIVERGENCES[divergence](u))
    value = torch.cat(parts).mean()
    (0.3 * value).backward()
    expected = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    assert relative_error(found, expected) < 1e-3
    assert one.metrics["dph_rl/divergence"] == pytest.approx(value.item(), rel=1e-4)
    assert value.item() > 0.01


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_divergence_is_least_where_the_policies_are_equal_and_its_slope_is_bounded(divergence):
    one = mechanism(divergence=divergence)
    values, slopes = one.divergence(np.array([-2.0, -0.5, 0.0, 0.5, 1.0, 9.0, 90.0, -2000.0]))
    assert (values[2], slopes[2]) == pytest.approx((0, 0), abs=1e-12) and (values[[0, 1, 3, 4]] > 0).all()
    assert (slopes[:2] < 0).all() and (slopes[3:5] > 0).all()
    bound = one.divergence(np.log([10.0]))
    assert (values[5], slopes[5]) == (values[6], slopes[6]) == pytest.approx((bound[0][0], bound[1][0]))
    assert np.isfinite(values).all() and np.isfinite(slopes).all()


def test_a_query_is_solved_by_its_first_group_alone(monkeypatch):
    monkeypatch.setattr(dph_rl, "KEEP", 2)
    one = mechanism()
    plain, other = sampled("a", 1, 1, 1), sampled("b", 1, 0)
    batch, rows = step(one, 0, plain, other, sampled("c", 1, context="hint"))
    assert rows == [] and trained(batch) == ["b", "c"] and batch.dropped == [plain]
    assert {uid: len(entries) for uid, entries in one.kept.items()} == {"a": 2}
    later, rows = step(one, 1, sampled("b", 1, 1, seed=1), sampled("a", 0, 0, seed=1), sampled("c", 1, 1))
    assert trained(later) == ["b"], "b was not solved at first, a stays out whatever it answers now, c is new"
    assert sorted(one.kept) == ["a", "c"] and one.metrics["dph_rl/left_out"] == 2
    for entry, sample in zip(one.kept["a"], plain.samples, strict=False):
        np.testing.assert_array_equal(entry.old_logprobs, sample.old_logprobs)
    half = mechanism(solved=0.5, leave_out=False)
    batch, _ = step(half, 0, sampled("a", 1, 0), sampled("b", 0, 0))
    assert sorted(half.kept) == ["a"] and trained(batch) == ["a", "b"]


def test_there_is_room_for_so_many_and_a_query_that_came_too_late_is_trained_on(monkeypatch):
    monkeypatch.setattr(dph_rl, "CAPACITY", 5)
    one = mechanism()
    batch, _ = step(one, 0, sampled("a", 1, 1, 1), sampled("b", 1, 1, 1), sampled("c", 1, 1))
    assert sorted(one.kept) == ["a", "c"] and trained(batch) == ["b"]
    assert one.metrics["dph_rl/kept"] == 5
    batch, _ = step(one, 1, sampled("b", 1, 1, 1))
    assert trained(batch) == ["b"]


def test_what_the_update_does_not_measure_is_scored_before_it():
    one = mechanism(leave_out=False)
    mine, dropped = sampled("a", 1, 1, scored=False), sampled("b", 1, 1, scored=False)
    batch = StepBatch(0, groups=[mine], dropped=[dropped])
    one.compose(batch)
    one.before_update(batch)
    assert [id(s) for s in one.scored] == [id(s) for s in dropped.samples]
    for sample in mine.samples:
        sample.old_logprobs = np.full(sample.rollout.response_length, -2.0, np.float32)
    one.update_history(batch)
    assert sorted(one.kept) == ["a", "b"] and one.kept["b"][0].old_logprobs[0] == -1.0


def test_a_share_of_the_steps_responses_is_rehearsed_and_slopes_weigh_them():
    one = mechanism(coefficient=0.5)
    step(one, 0, sampled("a", 1, 1, 1), sampled("b", 1, 1, 1))
    batch, rows = step(one, 1, sampled("c", 0, 0, 1, 0, 1), dropped=[sampled("a", 1, 1, 1)])
    assert len(rows) == one.metrics["dph_rl/rehearsed"] == 2  # a quarter of 8
    assert all(row.replayed for row in rows) and all(row not in g.samples for g in batch.groups for row in rows)
    stored = {e.tokens.tobytes(): e.old_logprobs for entries in one.kept.values() for e in entries}
    for row in rows:
        u = np.exp(-1.0 - stored[row.rollout.tokens.tobytes()])
        np.testing.assert_allclose(row.advantages, -0.5 * (np.minimum(u, 10.0) - 1), rtol=1e-5)
    again = mechanism(coefficient=0.0)
    again.restore(*one.state())
    assert step(again, 1, sampled("c", 0, 0, 1, 0))[1] == []


def test_a_resumed_run_keeps_and_rehearses_the_same_and_a_failed_step_changes_nothing():
    one, other = mechanism(), mechanism()
    step(one, 0, sampled("a", 1, 1, 1), sampled("b", 1, 0))
    failed = StepBatch(1, groups=[sampled("c", 1, 1)])
    arrays, state = one.state()
    one.compose(failed)
    one.before_update(failed)
    assert one.state()[1] == state and (one.state()[0]["seen"] == arrays["seen"]).all()
    other.restore({name: array.copy() for name, array in arrays.items()}, state)
    for number in (1, 2):
        groups = [sampled(uid, 1, 1, 1, seed=number) for uid in ("b", "c", "a")]
        left = [step(each, number, *[Group(g.prompt, list(g.samples)) for g in groups]) for each in (one, other)]
        (first, rows), (second, same) = left
        assert trained(first) == trained(second) == ["b"]
        assert [row.rollout.tokens.tolist() for row in rows] == [row.rollout.tokens.tolist() for row in same]
        assert [row.advantages.tolist() for row in rows] == [row.advantages.tolist() for row in same]
    fresh = mechanism()
    fresh.restore({}, {})
    assert fresh.kept == {} and not fresh.seen.any()
    fresh.restore(*mechanism().state())
    assert fresh.kept == {}


def test_it_reads_no_more_of_a_rollout_than_all_have():
    """Groups of other mechanisms, of one sample, without log-probs, of a query that is not in the data."""
    one = mechanism()
    hinted, single = sampled("a", 0, context="hint", scored=False), sampled("b", 1)
    foreign = Group(Prompt("nowhere"), sampled("c", 1).samples)
    replayed = sampled("d", 1, 1)
    replayed.samples.append(Sample(SimpleNamespace(correct=False, response_length=0), 0.0, replayed=True))
    batch, _ = step(one, 0, hinted, single, foreign, replayed)
    assert trained(batch) == ["a", "nowhere"] and sorted(one.kept) == ["b", "d"]
