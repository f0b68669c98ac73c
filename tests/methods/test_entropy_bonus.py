"""The entropy bonus: its gradient from whole logits, and how its coefficient moves. KL-Cov's penalty beside it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.batch import TrainingSample
from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_gradient
from algorithms.learner.equal_rows import merge_equal_rows
from algorithms.learner.flops import ModelShape, update_cost
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.losses.term import POLICY, term
from algorithms.methods.entropy_bonus import EntropyBonus, EntropyBonusSettings
from tests.learner.conftest import VOCABULARY, small_model
from tests.learner.recomputation import relative_error

ANCHOR, ENTROPY = term("anchor"), term("entropy")
LOSSES = {
    "by token": LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=0.0),
    "by response": LossSettings(clip_low=0.2, clip_high=0.2, importance_cap=0.0, ratio_level="sequence"),
}


def rows(*, bonus=0.0, anchored=False, seed=0):
    (rng, of_anchors), made = (np.random.default_rng([seed, stream]) for stream in (0, 1)), []
    for number in range(5):
        mask = np.repeat([False, True], [4, int(rng.integers(2, 9))])
        tokens = rng.integers(0, VOCABULARY, len(mask)).astype(np.int32)
        length = int(mask.sum())
        old = rng.normal(-4, 0.5, length).astype(np.float32)
        terms = {POLICY: 1.0}
        anchors = (of_anchors.random(length) < 0.4).astype(np.float32) * 0.7
        if anchored and number:
            terms[ANCHOR] = anchors
        if bonus and number != 2:
            terms[ENTROPY] = bonus
        advantage = 0.0 if number == 3 else float(rng.normal())
        made.append(TrainingSample(tokens, mask, advantage, 0.03 * (number + 1), old, old, 1, terms))
    return made


def updated(lm, made, loss, temperature=1.0, budget=10**6):
    lm.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(lm, made, ForwardSettings(temperature=temperature, token_budget=budget), loss)
    return statistics, {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def terms_from_whole_logits(lm, made, temperature):
    """The sum of `weight · (anchor · |log-ratio| - bonus · entropy)` over all tokens."""
    lm.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for row in made:
        tokens = torch.tensor(row.tokens.tolist())
        table = (lm(input_ids=tokens[None]).logits[0] / temperature).log_softmax(-1)
        places = torch.tensor(np.flatnonzero(row.loss_mask))
        anchors = torch.tensor(row.terms.get(ANCHOR, np.zeros(len(places), np.float32)))
        distance = (table[places - 1, tokens[places]] - torch.tensor(row.old_logprobs)).abs()
        entropy = -(table[places - 1].exp() * table[places - 1]).sum(-1)
        total = total + row.weight * (anchors * distance - row.terms.get(ENTROPY, 0.0) * entropy).sum()
    total.backward()
    return total.item(), {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("terms", [{"bonus": 0.4}, {"anchored": True}, {"bonus": 0.4, "anchored": True}], ids=str)
def test_the_terms_are_added_to_the_loss_as_whole_logits_have_them(loss, temperature, terms):
    lm = small_model().eval()
    value, expected = terms_from_whole_logits(lm, rows(**terms), temperature)
    plain, without = updated(lm, rows(), loss, temperature)
    for budget in (10**6, 30):
        statistics, found = updated(lm, rows(**terms), loss, temperature, budget)
        assert statistics.loss - plain.loss == pytest.approx(value, rel=1e-3)
        added = {name: gradient - without.get(name, 0) for name, gradient in found.items()}
        assert relative_error(added, expected) < 1e-4
    assert statistics.trained_tokens > plain.trained_tokens, "a response without an advantage has a gradient as well"


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_an_entropys_gradient_passes_the_cap_and_the_temperature_in_both_functions(softcap):
    torch.manual_seed(0)
    states, weight, targets = torch.randn(7, 5), torch.randn(11, 5), torch.randint(0, 11, (7,))
    bonuses = torch.rand(7)
    gradients = []
    for way in ("by hand", "chunked", "injected"):
        hidden, head = states.clone().requires_grad_(), weight.clone().requires_grad_()
        if way == "by hand":
            logits = hidden @ head.T
            logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            table = (logits / 0.8).log_softmax(-1)
            loss = (bonuses * (table.exp() * table).sum(-1)).sum()
        elif way == "chunked":
            arguments = {"temperature": 0.8, "softcap": softcap, "chunk": 3}
            _, entropies = chunked_logprobs(hidden, head, targets, entropy_gradient=True, **arguments)
            loss = -(bonuses * entropies).sum()
        else:
            slopes = lambda logprobs, _, rows: (torch.zeros_like(logprobs), -bonuses[rows])  # noqa: E731
            _, _, loss = chunked_logprobs_and_gradient(hidden, head, targets, slopes, **arguments)
        loss.backward()
        gradients.append((hidden.grad, head.grad))
    for found in gradients[1:]:
        for one, expected in zip(found, gradients[0], strict=True):
            torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-4)


def test_equal_rows_share_their_bonus_and_others_stay_apart():
    (row, *_) = rows(bonus=0.4, anchored=True, seed=1)[1:]
    merged, _ = merge_equal_rows([row, row])
    assert len(merged) == 1
    lm = small_model().eval()
    (twice, expected), (once, found) = (updated(lm, part, LOSSES["by token"]) for part in ([row, row], merged))
    assert once.loss == pytest.approx(twice.loss, rel=1e-5) and relative_error(found, expected) < 1e-5
    for own in ({ENTROPY: 0.3}, {ANCHOR: row.terms[ANCHOR] + 1}, {ANCHOR: 0.0}):
        assert len(merge_equal_rows([row, replace(row, terms={**row.terms, **own})])[0]) == 2
    assert len(merge_equal_rows([row, replace(row, inputs={"targets": 1.0})])[0]) == 2


def test_a_bonus_is_a_gradient_and_costs_a_backward_pass():
    row = replace(rows()[0], advantages=0.0, old_logprobs=None)
    paid = replace(row, terms={POLICY: 1.0, ENTROPY: 0.1})
    assert paid.has_gradient and not row.has_gradient
    shape = ModelShape.of(small_model())
    assert update_cost(shape, paid, reference=False) > 2 * update_cost(shape, row, reference=False)


def bonus(**settings):
    return EntropyBonus(EntropyBonusSettings(**settings), SimpleNamespace())


def step(one, entropy):
    fresh, replayed = Sample(SimpleNamespace(), 0.0), Sample(SimpleNamespace(), 0.0, replayed=True)
    batch = StepBatch(0, groups=[Group(Prompt("q"), [fresh, replayed])])
    one.before_update(batch)
    batch.record["policy/entropy"] = entropy
    one.update_history(batch)
    applied = fresh.terms.get(ENTROPY, 0.0)
    assert ENTROPY not in replayed.terms and one.metrics["entropy_bonus/coefficient"] == applied
    return applied


def test_the_coefficient_follows_the_entropy_one_step_behind():
    one = bonus(target=0.5, step=0.01, most=0.025)
    entropies = [0.4, 0.3, 0.2, 0.1, 0.6, 0.7, 0.4, 0.4]
    # 0.01, 0.02, 0.025 (capped), 0.025; above the target 0.015 and 0.005, which are not paid; then 0.015
    assert [step(one, entropy) for entropy in entropies] == pytest.approx([0, 0.01, 0.02, 0.025, 0.025, 0, 0, 0.015])


def test_without_a_target_the_coefficient_stays():
    one = bonus(target=None, coefficient=0.3)
    assert [step(one, entropy) for entropy in (0.1, 9.0, 0.1)] == [0.3] * 3


def test_a_resumed_bonus_is_the_same_and_a_step_without_responses_moves_nothing():
    one, other = (bonus(target=0.5, step=0.01, most=1.0) for _ in range(2))
    for entropy in (0.4, 0.4, 0.6):
        step(one, entropy)
    one.update_history(StepBatch(3))
    other.restore(*one.state())
    assert [step(other, 0.4) for _ in range(3)] == [step(one, 0.4) for _ in range(3)] != [0, 0.01, 0.02]
    fresh = bonus()
    fresh.restore({}, {})
    assert fresh.state() == ({}, {"coefficient": 0.0, "below": True})
