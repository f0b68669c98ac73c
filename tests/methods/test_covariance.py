"""Clip-Cov and KL-Cov: which tokens are held back, and how."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.samples import deal_auxiliary, training_samples
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.losses.term import DIRECT, POLICY, term
from algorithms.methods.covariance import Covariance, CovarianceSettings
from tests.family.conftest import preset

ANCHOR = term("anchor")


def mechanism(**settings):
    services = SimpleNamespace(rng=lambda name, step, occasion=0: np.random.default_rng([len(name), step]))
    return Covariance(CovarianceSettings(**settings), services)


def sample(advantages, logprobs, *, replayed=False, scored=True):
    logprobs = np.array(logprobs, np.float32)
    mask = np.arange(len(logprobs) + 2) > 1
    rollout = SimpleNamespace(
        response_length=len(logprobs),
        sampling_logprobs=logprobs if not scored else np.zeros_like(logprobs),
        tokens=np.arange(len(mask), dtype=np.int32),
        loss_mask=mask,
    )
    return Sample(rollout, 0.0, old_logprobs=logprobs if scored else None, advantages=advantages, replayed=replayed)


@pytest.mark.parametrize("shared", [{"ratio_level": "sequence"}, {"objective": "gmpo"}])
def test_a_ratio_that_tokens_share_leaves_nothing_to_hold_back(shared):
    config = GRPOConfig().training(mechanisms=["covariance"], **shared)
    with pytest.raises(ConfigError, match=r"covariance.mode: 'clip' .* fix: covariance.mode=kl"):
        config.validate()
    config.apply({"covariance": {"mode": "kl"}}).validate()


def batch(seed=0, count=12):
    """Half of them scored, some with an advantage per token, one replayed."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        length = int(rng.integers(1, 40))
        advantages = float(rng.normal()) if number % 3 else rng.normal(size=length).astype(np.float32)
        logprobs = -rng.exponential(1.5, length)
        samples.append(sample(advantages, logprobs, replayed=number == 4, scored=number % 2 == 0))
    return StepBatch(3, groups=[Group(Prompt("a"), samples[:5]), Group(Prompt("b"), samples[5:])])


def covariances(step):
    """By hand: sample → its tokens' covariances."""
    fresh = [s for group in step.groups for s in group.samples if not s.replayed]
    logprobs = [s.rollout.sampling_logprobs if s.old_logprobs is None else s.old_logprobs for s in fresh]
    pairs = [
        (float(a), float(p))
        for s, own in zip(fresh, logprobs, strict=True)
        for a, p in zip(np.broadcast_to(s.advantages, len(own)), own, strict=True)
    ]
    mean_a, mean_p = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    values = [(a - mean_a) * (p - mean_p) for a, p in pairs]
    places = np.cumsum([0, *(len(own) for own in logprobs)])
    return [(s, np.array(values[i:j])) for s, i, j in zip(fresh, places[:-1], places[1:], strict=True)]


def test_clip_takes_the_advantage_of_as_many_random_tokens_as_the_share_says():
    before, after = batch(), batch()
    one = mechanism(share=0.05, low=0.2, high=2.0)
    one.before_update(after)
    tokens = candidates = silenced = 0
    for (old, values), (new, _) in zip(covariances(before), covariances(after), strict=True):
        was, now = (np.broadcast_to(s.advantages, len(values)) for s in (old, new))
        changed = now == 0
        np.testing.assert_allclose(now[~changed], was[~changed], rtol=1e-6)
        assert ((values > 0.2) & (values < 2.0))[changed].all()
        assert new.terms == {POLICY: 1.0}
        tokens, candidates = tokens + len(values), candidates + int(((values > 0.2) & (values < 2.0)).sum())
        silenced += int(changed.sum())
    assert silenced == int(0.05 * tokens) == one.metrics["covariance/tokens"] < candidates
    every = np.concatenate([values for _, values in covariances(before)])
    assert one.metrics["covariance/mean"] == pytest.approx(every.mean())
    again, other = batch(), batch()
    mechanism(share=0.05, low=0.2, high=2.0).before_update(again)
    other.step = 4
    mechanism(share=0.05, low=0.2, high=2.0).before_update(other)
    chosen = [[np.array(s.advantages) for g in step.groups for s in g.samples] for step in (after, again, other)]
    assert all(np.array_equal(a, b) for a, b in zip(chosen[0], chosen[1], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(chosen[0], chosen[2], strict=True)), (
        "another step, another draw"
    )


def test_kl_makes_the_largest_pay_for_distance_and_leaves_advantages_alone():
    before, after = batch(), batch()
    one = mechanism(mode="kl", share=0.03, coefficient=2.5)
    one.before_update(after)
    pairs = [
        (v, s.terms[ANCHOR][t] if ANCHOR in s.terms else 0.0)
        for s, own in covariances(after)
        for t, v in enumerate(own)
    ]
    count = int(0.03 * len(pairs))
    largest = sorted(pairs, key=lambda pair: -pair[0])
    assert [anchor for _, anchor in largest] == [2.5] * count + [0.0] * (len(pairs) - count)
    for (old, _), (new, _) in zip(covariances(before), covariances(after), strict=True):
        np.testing.assert_array_equal(old.advantages, new.advantages)
    rows = training_samples([(0, s) for s in after.groups[0].samples], preset("kl_cov").training_settings, 40)
    assert [row.terms == s.terms for row, s in zip(rows, after.groups[0].samples, strict=True)] == [True] * 5
    marked = [s for g in after.groups for s in g.samples if ANCHOR in s.terms]
    assert all(row.terms == {DIRECT: 1.0} for row in deal_auxiliary(marked, 0, 1))


def test_at_least_one_token_is_chosen_and_a_step_without_any_passes():
    tiny = StepBatch(0, groups=[Group(Prompt("a"), [sample(1.0, [-0.1, -3.0]), sample(-1.0, [-0.2, -2.0])])])
    one = mechanism(mode="kl")
    one.before_update(tiny)
    assert one.metrics["covariance/tokens"] == 1
    one.before_update(StepBatch(1))


def test_replayed_responses_are_left_alone():
    step = batch()
    replayed = step.groups[0].samples[4]
    mechanism(share=0.9, low=-100, high=100).before_update(step)
    assert replayed.replayed and np.ndim(replayed.advantages) == 0 and replayed.advantages != 0


def test_masked_responses_are_neither_counted_nor_chosen():
    one, masked = sample(1.0, [-1.0, -3.0]), sample(9.0, [-9.0, -1.0])
    masked.masked = True
    mechanism(share=0.9, low=-100, high=100).before_update(
        step := StepBatch(0, groups=[Group(Prompt("a"), [one, masked])])
    )
    assert masked.advantages == 9.0 and not one.advantages.all() and len(step.groups[0].samples) == 2


def test_what_another_method_keeps_for_a_later_step_is_no_part_of_this_one():
    alone, beside = batch(), batch()
    waiting = [sample(0.0, [-9.0] * 30) for _ in range(3)]  # as rorecomp leaves them
    for one in waiting:
        one.optional = True
    beside.groups[1].samples += waiting
    metrics = []
    for step in (alone, beside):
        one = mechanism(mode="kl", share=0.05)
        one.before_update(step)
        metrics.append(one.metrics)
    assert metrics[0] == metrics[1] and not any(ANCHOR in one.terms for one in waiting)
