"""LaSeR: its gradient from whole logits, what it measures, how it joins advantages, and the token that it asks for."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import deal_auxiliary, scoring_row
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.methods.laser import Laser, LaserSettings, balance
from algorithms.models.unused_token import unused_token
from algorithms.rollout.conversation import extended, is_finished
from algorithms.rollout.types import NEW_CONTEXT, Request, Sampling
from algorithms.utils.statistics import area_under_curve
from tests.hand_made import answer
from tests.learner.conftest import VOCABULARY, small_model
from tests.learner.recomputation import relative_error

from .simulated import services

Z_C = VOCABULARY - 1
TOKENIZER = SimpleNamespace(eos_token_id=1, pad_token_id=0)


def response(place, *, correct, truncated=False, replayed=False, length=None):
    rng = np.random.default_rng(place)
    request = Request(place, Prompt("q"), 0, 0, Sampling())
    tokens = rng.integers(2, VOCABULARY - 1, length or int(rng.integers(2, 8)))
    rollout = answer(request, prompt=[3, 4, 5], response=tokens, correct=correct, truncated=truncated)
    return Sample(rollout, float(correct), replayed=replayed)


def step(number=0):
    """A mixed group with a truncated and a replayed response, and a failed group."""
    mixed = [response(n, correct=n in (1, 2, 5), truncated=n == 3, replayed=n == 5) for n in range(6)]
    failed = [response(n, correct=False) for n in range(10, 14)]
    return StepBatch(number, groups=[Group(Prompt("q"), mixed), Group(Prompt("r"), failed)])


def mechanism(lm=None, temperature=1.0, context=None, **settings):
    """LaSeR over a model that scores, or over log-probs -20 - the response's length."""

    def scored(samples, *, entropy=False):
        for sample in samples:
            if lm is None:
                sample.old_logprobs = np.array([-20.0 - len(sample.rollout.tokens)], np.float32)
            else:
                forward = ForwardSettings(temperature=temperature)
                sample.old_logprobs = score(lm, [scoring_row(sample)], forward, entropy=False)[0][0]

    config = SimpleNamespace(env_runners_settings=SimpleNamespace(temperature=temperature))
    given = services(config=config, score=scored, opened_tokenizer=TOKENIZER, vocabulary=VOCABULARY, context=context)
    one = Laser(LaserSettings(**{"token": Z_C} | settings), given)
    one.metrics = dict(one.tags)
    return one


def advance(one, batch, values=1.0):
    """What a step of the algorithm calls, but for the update."""
    one.services.step = batch.step
    one.compose(batch)
    for group in batch.groups:
        found = one.advantages(group, np.full(len(group.samples), values))
        for sample, advantage in zip(group.samples, found, strict=True):
            sample.advantages = advantage
    return one.auxiliary(batch)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_the_weighted_squared_error_from_whole_logits(temperature):
    lm, batch = small_model().eval(), step()
    one = mechanism(lm, temperature, reference=-5.0, beta=0.3, coefficient=0.4)
    rows = [row for own in [advance(one, batch)] for row in deal_auxiliary(own, 0, 1)]
    lm.zero_grad(set_to_none=True)
    loss = LossSettings.of(TrainingSettings(importance_cap=0.0))
    accumulate_gradients(lm, rows, ForwardSettings(temperature=temperature, token_budget=40), loss)
    found = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}

    lm.zero_grad(set_to_none=True)
    asked = [s for group in batch.groups for s in group.samples if not s.replayed and not s.rollout.truncated]
    right = sum(sample.rollout.correct for sample in asked)
    assert (len(asked), right) == (8, 2)
    total = torch.zeros(())
    for sample in asked:
        tokens = torch.tensor([sample.rollout.tokens.tolist()])
        table = (lm(input_ids=tokens).logits[0, -1] / temperature).log_softmax(-1)
        confidence = 0.3 * (temperature * table[Z_C] + 5.0)
        weight = 8 / (2 * (right if sample.rollout.correct else 8 - right))
        total = total + weight * (confidence - float(sample.rollout.correct)) ** 2 / 8
    (0.4 * total).backward()
    expected = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    assert relative_error(found, expected) < 1e-3
    assert one.metrics["laser/loss"] == pytest.approx(total.item(), rel=1e-4)


def test_confidences_join_the_advantages_of_finished_responses_after_the_warm_up():
    one = mechanism(reference=-31.0, warmup=2, min_std=0.1)
    early = step(1)
    advance(one, early)
    assert all(sample.advantages == 1.0 for group in early.groups for sample in group.samples)
    late = step(2)
    advance(one, late)
    group = late.groups[0]
    asked = [n for n, s in enumerate(group.samples) if not s.replayed and not s.rollout.truncated]
    confidences = np.array([0.1 * (-20 - len(group.samples[n].rollout.tokens) - 1 + 31) for n in asked]).clip(0, 1)
    expected = np.ones(6)
    expected[asked] = 0.9 + 0.1 * (confidences - confidences.mean()) / confidences.std()
    np.testing.assert_allclose([sample.advantages for sample in group.samples], expected, rtol=1e-4)
    assert confidences.std() > 0.1 and expected[3] == expected[5] == 1.0


def test_advantages_per_token_keep_their_shape_and_a_group_of_even_confidences_its_own():
    one = mechanism(reference=-31.0, warmup=0)
    batch = step()
    one.compose(batch)
    group = batch.groups[0]
    given = [np.full(sample.rollout.response_length, 2.0, np.float32) for sample in group.samples]
    found = one.advantages(group, given)
    assert [value.shape for value in found] == [value.shape for value in given]
    assert np.ptp(found[0]) == 0 and found[0][0] != 2.0 and (found[3] == 2.0).all()
    wide = mechanism(reference=-31.0, warmup=0, min_std=0.6)
    wide.compose(batch)
    assert wide.advantages(group, given) is given


def test_the_reference_is_the_mean_of_the_first_step_and_part_of_the_state():
    one = mechanism(warmup=0)
    empty = StepBatch(0, groups=[Group(Prompt("q"), [response(1, correct=False, truncated=True)])])
    advance(one, empty)
    one.update_history(empty)
    assert one.state() == ({}, {"reference": None})
    first = step(1)
    rows = advance(one, first)
    expected = np.mean([-20.0 - len(row.rollout.tokens) for row in rows])
    assert one.state() == ({}, {"reference": None}), "a step that fails before its update has changed nothing"
    one.update_history(first)
    assert one.reference == pytest.approx(expected) and one.metrics["laser/reference"] == one.reference
    other = mechanism(warmup=0)
    other.restore(*one.state())
    later = [advance(each, StepBatch(2, groups=step().groups[:1])) for each in (one, other)]
    assert [row.advantages for row in later[0]] == [row.advantages for row in later[1]]
    other.update_history(first)
    assert other.reference == one.reference
    fixed = mechanism(reference=-3.0)
    fixed.restore({}, {"reference": 5.0})
    assert fixed.reference == -3.0


def test_what_is_asked_and_what_is_not():
    lengths = {len(s.rollout.tokens) for s in step().groups[0].samples if is_finished(s.rollout) and not s.replayed}
    one = mechanism(context=max(lengths))  # the longest has no room for one more
    batch = step()
    batch.groups = batch.groups[:1]
    rows = advance(one, batch)
    assert {len(row.rollout.tokens) - 1 for row in rows} == lengths - {max(lengths)} != set()
    assert all(row.rollout.loss_mask.sum() == 1 and row.rollout.tokens[-1] == Z_C for row in rows)
    assert advance(mechanism(start=1), step()) == [] and len(advance(mechanism(start=1), step(1))) == 8
    assert advance(mechanism(coefficient=0.0), step()) == []


def test_behind_a_conversation_the_token_stands_in_the_last_context():
    request = Request(0, Prompt("q"), 0, 0, Sampling())
    rollout = answer(request, prompt=[3, 4], response=[5, 1], correct=True)
    two = replace(
        rollout,
        tokens=np.array([3, 4, 5, 1, NEW_CONTEXT, 3, 6, 7, 1], np.int32),
        loss_mask=np.array([0, 0, 1, 1, 0, 0, 0, 1, 1], bool),
    )
    asked = extended(two, Z_C)
    assert asked.response_length == len(asked.sampling_logprobs) == 1
    assert asked.tokens.tolist() == [3, 6, 7, 1, Z_C] and asked.loss_mask.tolist() == [False] * 4 + [True]
    assert is_finished(two) and not is_finished(replace(two, truncated=True))
    assert not is_finished(replace(two, loss_mask=two.loss_mask & (np.arange(9) < 8)))


def test_both_outcomes_weigh_the_same_together():
    outcomes = np.array([1, 0, 0, 0.0])
    assert balance(outcomes).tolist() == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert balance(np.zeros(3)).tolist() == [0.5] * 3


def test_the_area_under_the_curve_is_the_chance_to_tell_a_pair_apart():
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 5, 40).astype(float), rng.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    assert area_under_curve(scores, positive) == pytest.approx(np.mean(pairs))
    assert area_under_curve(scores, np.ones(40, bool)) == 0.5


class Tokenizer:
    """A vocabulary of texts; those in angle brackets are special. Spells any text byte by byte."""

    eos_token_id, pad_token_id, bos_token_id, unk_token_id = 1, 0, None, None

    def __init__(self, *texts, spelt=()):
        self.texts, self.spelt = {text: number for number, text in enumerate(texts)}, spelt

    def get_vocab(self):
        return self.texts

    def get_added_vocab(self):
        return {text: number for text, number in self.texts.items() if text.startswith("<|")}

    def encode(self, text, add_special_tokens=True):
        return [self.texts[part] for part in self.spelt]


@pytest.mark.parametrize(
    ("texts", "rows", "chosen"),
    [
        (("pad", "eos", "a", "<|im_start|>", "<|vision_start|>", "ÿ"), 9, 4),
        (("pad", "eos", "a", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"), 5, 3),
        (("pad", "eos", "a", "ÿ"), 6, 4),  # a row without a token
        (("pad", "eos", "Ã", "¿", "ÿ"), 5, 4),  # bytes
        (("pad", "eos", "<0xFE>", "<0xFF>"), 4, 3),
    ],
)
def test_the_token_is_one_that_responses_never_contain(texts, rows, chosen):
    assert unused_token(Tokenizer(*texts, spelt=("pad",)), rows, None, "laser.token") == chosen


def test_without_such_a_token_and_for_one_that_is_none_the_line_says_so():
    letters = Tokenizer("pad", "eos", "ÿ", spelt=("ÿ",))
    with pytest.raises(ConfigError, match=r"laser.token: the vocabulary has no reserved token.*; fix: laser.token=NUM"):
        unused_token(letters, 3, None, "laser.token")
    assert unused_token(letters, 3, "ÿ", "laser.token") == 2 == unused_token(letters, 3, 2, "laser.token")
    for wrong in (3, -1, "<|none|>"):
        with pytest.raises(ConfigError, match=r"laser.token: the model has no token .*; fix: a number below 3"):
            unused_token(letters, 3, wrong, "laser.token")
    with pytest.raises(ConfigError, match=r"ends or pads responses"):
        unused_token(letters, 3, "eos", "laser.token")


def test_nothing_of_a_step_is_kept_for_the_next_one():
    one, batch = mechanism(), step()
    one.compose(batch)
    assert one.auxiliary(batch) and one.asked
    one.update_history(batch)
    assert one.asked is None and not one.batch.groups and one.reference is not None
