"""BCPG-NSA: which tokens are of correct steps, and advantages by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.methods.bcpg_nsa import BcpgNsa, BcpgNsaSettings, correct_equations
from r3env.core import Query
from tests.methods.simulated import services

PIECES = ["7", "+8", "=1", "5", "-9=", "7", "!"]


def found(text):
    return [text[start:end] for start, end in correct_equations(Query("q", "", ""), text)]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7+8=15-9=6+4=10", ["7+8=15", "15-9=6", "6+4=10"]),
        ("7+8-9=15-9=6", ["7+8-9=15-9", "15-9=6"]),
        ("7+8=14-9=5", ["14-9=5"]),
        ("so 2 + 3 = 5, and 2 + 2 = 5", ["2 + 3 = 5"]),
        ("3*7+8=15, 1.5+2=4, 2+2=4/1", []),
        ("7+8=15*2, 7+8=15-9*2", ["7+8=15"]),  # of the second: 15 is not multiplied
        ("nothing", []),
    ],
)
def test_equations_of_sums_that_hold_are_correct_steps(text, steps):
    assert found(text) == steps


def sample(correct, replayed=False):
    rollout = SimpleNamespace(
        uid="q00",
        correct=correct,
        response_length=7,
        turn_lengths=(7,),
        response_tokens=np.arange(7),
        sampling_logprobs=np.zeros(7, np.float32),
    )
    old = np.array([-1, -1, -2, -1, -1, -1, -3], np.float32)
    return Sample(rollout, float(correct), old_logprobs=old, replayed=replayed)


def test_advantages_are_halved_on_correct_steps_of_failures_and_pay_for_the_distance():
    """`7+8=15-9=7!`: the first four tokens are a correct step. log π is -10, log π_ref -8: a distance of -2."""
    given = services(
        opened_tokenizer=SimpleNamespace(decode=lambda ids, **_: "".join(PIECES[token] for token in ids)),
        measure=lambda samples: None,
        score_under=lambda samples, under: [np.full(7, -8 / 7, np.float32) for _ in samples],
    )
    one = BcpgNsa(BcpgNsaSettings(tau=0.1), given)
    group = Group(Prompt("q00"), [sample(True), sample(False), sample(False, replayed=True)])
    one.before_advantages(StepBatch(0, groups=[group]))
    correct, wrong, stored = one.advantages(group, np.array([0.5, -0.5, -0.5]))
    assert correct.tolist() == pytest.approx([0.7] * 7)
    assert wrong.tolist() == pytest.approx([-0.05] * 4 + [-0.3] * 3)
    assert stored.tolist() == [-0.5] * 7
    assert one.metrics == pytest.approx({"bcpg_nsa/correct_steps": 4 / 7, "bcpg_nsa/distance": -2.0})


def test_steps_are_looked_for_in_the_query_as_it_was_posed():
    forms = {"variants": {"open": {"problem": "7 + 8 - 9", "answer": "6"}}}
    given = services(
        opened_tokenizer=SimpleNamespace(decode=lambda ids, **_: "".join(PIECES[token] for token in ids)),
        info=lambda uid: forms,
    )
    one, asked = BcpgNsa(BcpgNsaSettings(tau=0), given), []
    one.spans = lambda query, response: asked.append((query.problem, query.answer)) or []
    one.before_advantages(StepBatch(0, groups=[Group(Prompt("q00", variant="open"), [sample(False)])]))
    assert asked == [("7 + 8 - 9", "6")]


def test_a_function_that_is_not_there_is_one_line():
    with pytest.raises(ConfigError, match=r"^bcpg_nsa\.steps: [^\n]*$"):
        BcpgNsa.check(BcpgNsaSettings(steps="json:no_such"), None)
