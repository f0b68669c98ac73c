"""Terms of the loss as rows name them: the library's files, and a term of a user's own."""

import sys
from textwrap import dedent

import numpy as np
import pytest
import torch

from algorithms.config.errors import ConfigError
from algorithms.config.plugins import find_plugins
from algorithms.learner.batch import TrainingSample
from algorithms.learner.loss import LossInputs, token_loss
from algorithms.losses.base import PACKAGE, LossSettings, LossTerm, Objective, load_term
from algorithms.losses.term import POLICY, term
from algorithms.utils.errors import RunError

USER_MODULE = """
    import torch
    from algorithms.config.schema import Settings, setting
    from algorithms.losses.base import LossTerm, Objective


    class SquaredSettings(Settings):
        scale: float = setting(1.0, "Factor.", gt=0)


    class Squared(LossTerm):
        settings_class = SquaredSettings

        def token_loss(self, logprobs, targets):
            return self.settings.scale * (logprobs - targets) ** 2


    class Surprise(LossTerm):
        def token_loss(self, logprobs, *, entropies):
            return logprobs * entropies


    class Mean(LossTerm):
        def token_loss(self, logprobs):
            return logprobs.mean()


    class Nothing(LossTerm):
        def token_loss(self, logprobs):
            logprobs.square()


    class Alone(Objective):
        def token_objective(self, ratio, logprobs, advantages, settings):
            return ratio * advantages


    class Floating(Objective):
        def token_objective(self, ratio, logprobs, advantages, settings):
            return ratio * advantages, torch.zeros_like(ratio)


    class Whole(Objective):
        def response_objective(self, ratio, logprobs, advantages, settings, lengths):
            return (ratio * advantages).mean(), ratio > 1
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch) -> str:
    """A module of the user's own, on the path for one test."""
    (tmp_path / "my_terms.py").write_text(dedent(USER_MODULE), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_terms"
    sys.modules.pop("my_terms", None)


def row(length, terms, **inputs):
    tokens = np.arange(length + 1, dtype=np.int32)
    old = np.full(length, -1.0, np.float32)
    return TrainingSample(tokens, tokens > 0, 1.0, 0.5, old, terms=terms, inputs=inputs)


def loss_and_sums(rows, logprobs, entropies=None):
    settings = LossSettings(importance_cap=0.0)
    inputs = LossInputs.of(rows, torch.device("cpu"), settings)
    return token_loss(logprobs, entropies, inputs, settings)


def evaluate(rows, logprobs, entropies=None):
    return loss_and_sums(rows, logprobs, entropies)[0]


def test_every_file_of_the_library_is_found_and_says_what_it_reads():
    found = find_plugins(PACKAGE, LossTerm)
    others = {name: kind.reads() for name, kind in found.items() if not issubclass(kind, Objective)}
    assert others == {
        "anchor": ("logprobs", "old_logprobs"),
        "entropy": ("entropies",),
        "kl": ("logprobs", "reference_logprobs"),
        "proximity": ("logprobs", "old_logprobs"),
        "rover": (
            "logprobs",
            "old_logprobs",
            "advantages",
            "next_vocabulary_logprobs",
            "old_next_vocabulary_logprobs",
        ),
    }
    assert issubclass(load_term("policy"), Objective)
    with pytest.raises(ConfigError, match=r"loss term: 'anchr' is not one of .*; did you mean anchor\?"):
        load_term("anchr")


def test_a_term_of_ones_own_reads_what_rows_carry_and_only_its_rows_pay(user_module):
    squared = term(f"{user_module}:Squared", scale=3.0)
    weight = np.array([1.0, 0.0], np.float32)
    rows = [row(2, {POLICY: 1.0}), row(2, {squared: weight}, targets=np.array([-2.0, 5.0], np.float32))]
    logprobs = torch.full((4,), -1.0, requires_grad=True)
    loss = evaluate(rows, logprobs)
    loss.backward()
    assert loss.item() == pytest.approx(-0.5 * 2 + 0.5 * 3.0 * 1.0)
    assert logprobs.grad.tolist() == pytest.approx([-0.5, -0.5, 0.5 * 3.0 * 2.0, 0.0])


def test_each_term_has_its_sum_by_name_and_they_add_up_to_the_loss(user_module):
    targets = np.array([-2.0, 5.0], np.float32)
    scaled = {term(f"{user_module}:Squared", scale=scale): 1.0 for scale in (1.0, 3.0)}
    rows = [row(2, {POLICY: 1.0, term("anchor"): 0.5}), row(2, scaled, targets=targets)]
    loss, sums = loss_and_sums(rows, torch.tensor([-1.0, -2.0, -1.0, 4.0]))
    found = {name: value.item() for name, value in sums.items() if name.startswith("loss/")}
    assert found == pytest.approx(
        {"loss/policy": -0.5 * (1 + np.exp(-1)), "loss/anchor": 0.5 * 0.5 * 1, "loss/Squared": 0.5 * (1 + 3) * (1 + 1)}
    )
    assert loss.item() == pytest.approx(sum(found.values()))


def test_a_term_may_bend_with_the_entropy_too(user_module):
    logprobs, entropies = torch.tensor([-1.0, -3.0], requires_grad=True), torch.tensor([0.5, 2.0], requires_grad=True)
    rows = [row(2, {term(f"{user_module}:Surprise"): 1.0})]
    evaluate(rows, logprobs, entropies).backward()
    assert logprobs.grad.tolist() == [0.25, 1.0] and entropies.grad.tolist() == [-0.5, -1.5]


def test_a_row_without_an_advantage_has_a_gradient_only_from_other_terms(user_module):
    silent = TrainingSample(np.arange(3, dtype=np.int32), np.arange(3) > 0, 0.0, 0.5)
    assert not silent.has_gradient
    for weight, expected in ((0.0, False), (0.1, True), (np.zeros(2, np.float32), False)):
        own = TrainingSample(silent.tokens, silent.loss_mask, terms={POLICY: 1.0, term("anchor"): weight})
        assert own.has_gradient == expected


@pytest.mark.parametrize(("name", "came"), [("Mean", r"Tensor of .* shape \(\)"), ("Nothing", "NoneType")])
def test_a_term_that_returns_no_loss_for_each_token_is_named(user_module, name, came):
    with pytest.raises(RunError, match=rf"^my_terms:{name}.token_loss returned a {came} for 2 tokens; fix: return flo"):
        evaluate([row(2, {term(f"{user_module}:{name}"): 1.0})], torch.zeros(2))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Alone", "Alone.token_objective returned a NoneType"),
        ("Floating", "Floating.token_objective returned a Tensor of torch.float32"),
        ("Whole", r"Whole.response_objective returned a Tensor"),
    ],
)
def test_an_objective_that_returns_something_else_is_named(user_module, name, line):
    with pytest.raises(RunError, match=rf"^my_terms:{line}.* for 2 tokens; fix: return float \[N\] and bool \[N\]"):
        evaluate([row(2, {term(f"{user_module}:{name}"): 1.0})], torch.zeros(2))


def test_a_term_takes_no_list_as_a_setting():
    with pytest.raises(
        ConfigError,
        match=r"^loss term mine:Squared: scale: \[2.0\] has an unhashable type: 'list'; fix: a number, text or tuple",
    ):
        term("mine:Squared", scale=[2.0])
