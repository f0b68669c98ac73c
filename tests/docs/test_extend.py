"""docs/method/extend.md quotes the example as it is, and what it shows works."""

import sys

import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.losses.base import load_term
from algorithms.r3_grpo.config import R3GRPOConfig

from .pages import DOCS, ROOT, fenced

PAGE = DOCS / "method/extend.md"
MECHANISM, IN_PYTHON, TEST, *METHODS, TESTS = fenced(PAGE, "python")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Puts the page's sampler, estimator, loss and loss term into a module `mine`."""
    (tmp_path / "mine.py").write_text("\n".join(METHODS), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def test_the_mechanism_is_the_file_of_the_examples():
    assert (ROOT / "examples" / "hints.py").read_text(encoding="utf-8") == MECHANISM


def test_a_configuration_takes_the_mechanism_and_its_settings():
    scope = {}
    exec(compile(IN_PYTHON, PAGE.name, "exec"), scope)
    scope["config"].check_settings()
    assert scope["config"].hints_settings.max_groups == 2


def test_the_test_of_the_page_passes():
    scope = {}
    exec(compile(TEST, PAGE.name, "exec"), scope)
    scope["test_an_unsolved_query_is_rolled_out_again_with_its_hint"]()


@pytest.mark.parametrize("config_class", [GRPOConfig, R3GRPOConfig])
def test_a_configuration_takes_the_other_methods(mine, config_class):
    config = config_class().training(query_sampler="mine:First", advantage="mine:Signs", objective="mine:Reinforce")
    config.training(mechanisms=["mine:HoldBack"]).apply({"first": {"count": 4}}).check_settings()
    assert config.first_settings.count == 4
    assert load_term("mine:Squared").reads() == ("logprobs", "targets")


def test_every_kind_of_class_that_a_setting_takes_is_in_the_table_and_in_the_api():
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| a")]
    api = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    kinds = {"QuerySampler", "Mechanism", "AdvantageEstimator", "Objective", "LossTerm", "StopCondition", "Tracker"}
    assert [kind for kind in sorted(kinds) if f".{kind}\n" not in api] == []
    there = {kind for kind in kinds if any(f"| `{kind}` |" in line for line in table)}
    assert kinds - there == {"StopCondition", "Tracker"}  # a sentence below the table has them


def test_the_tests_of_the_other_methods_pass(mine):
    scope = {}
    exec(compile(TESTS, PAGE.name, "exec"), scope)
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert len(tests) == 4
