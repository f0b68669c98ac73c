"""PreRL: rows without their prompts, and the loss that a step trains on, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import deal_auxiliary, training_samples
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.losses.term import DIRECT
from algorithms.methods.prerl import PreRL, PreRLSettings, without_prompt
from algorithms.rollout.types import Request, Sampling
from tests.hand_made import answer


def rollout(response, correct=False):
    request = Request(0, Prompt("q"), 0, 0, Sampling())
    return answer(request, prompt=[9, 8, 7], response=response, correct=correct)


@pytest.mark.parametrize(
    ("tokens", "own", "expected", "kept"),
    [
        ([9, 8, 7, 1, 2], [3, 4], [9, 1, 2], [1, 2]),
        ([9, 1, 2], [1, 2], [9, 1, 2], [1, 2]),
        ([9, 8, 1, 5, 2], [2, 4], [9, 1, 5, 2], [1, 3]),
        ([9, 8, 1, -1, 9, 8, 1, 5, 2], [2, 8], [9, 1, -1, 9, 2], [1, 4]),
    ],
    ids=["a prompt", "nothing to leave out", "two turns", "two contexts"],
)
def test_each_context_keeps_its_first_token_and_what_the_policy_began(tokens, own, expected, kept):
    mask = np.isin(np.arange(len(tokens)), own)
    found = without_prompt(replace(rollout([1]), tokens=np.array(tokens, np.int32), loss_mask=mask))
    assert found.tokens.tolist() == expected and np.flatnonzero(found.loss_mask).tolist() == kept


def step(number, **settings):
    """Two correct and two incorrect responses, one of them replayed."""
    samples = [
        Sample(rollout([1, 2], True), 1.0),
        Sample(rollout([1], True), 1.0),
        Sample(rollout([3, 4, 5]), 0.0),
        Sample(rollout([6]), 0.0, old_logprobs=np.zeros(1, np.float32), replayed=True),
    ]
    batch = StepBatch(number, groups=[Group(Prompt("q"), samples)])
    one = PreRL(PreRLSettings(**settings), SimpleNamespace())
    one.before_update(batch)
    return one, one.auxiliary(batch), samples


def test_the_first_steps_train_on_failures_alone_without_prompts():
    one, rows, samples = step(1, steps=2, coefficient=0.2)
    (row,) = deal_auxiliary(rows, 0, 1)
    assert row.tokens.tolist() == [9, 3, 4, 5] and row.loss_mask.tolist() == [False, True, True, True]
    assert row.advantages == pytest.approx(0.2 * (0 - 0.5)) and row.weight == pytest.approx(1 / 3)
    assert row.terms == {DIRECT: 1.0} and one.metrics["prerl/responses"] == 1
    weights = [row.weight for row in training_samples([(0, s) for s in samples], TrainingSettings(), 8)]
    assert weights == [0.0] * 4


def test_later_steps_are_plain_training():
    _, rows, samples = step(2, steps=2)
    assert rows == [] and not any(sample.masked for sample in samples)


def test_a_correct_response_that_is_paid_less_than_others_is_no_failure():
    one = PreRL(PreRLSettings(), SimpleNamespace())
    batch = StepBatch(
        1, groups=[Group(Prompt("q"), [Sample(rollout([1], True), 1.9), Sample(rollout([1, 2], True), 1.5)])]
    )
    one.before_update(batch)
    assert one.auxiliary(batch) == []
