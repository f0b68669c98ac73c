"""Which history makes a query hard: windows and numbers of attempts that follow from the group's size."""

from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.algorithm import GRPO
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.memory import to_entry
from algorithms.rollout.types import Attempt

from .conftest import sample

GROUP_SIZE = 3


@pytest.fixture
def history_of(monkeypatch):
    """The history that `R3GRPO.setup` makes; GRPO's setup is stood in for."""

    def parents_setup(algorithm, config):
        environment = SimpleNamespace(unwrapped=SimpleNamespace(reflection_guidance="Again."))
        algorithm.tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
        algorithm.environments = {"train": environment}
        algorithm.model_configs = ModelConfigs.read(config.rl_module_settings)

    def make(**reflection):
        monkeypatch.setattr(GRPO, "setup", parents_setup)
        algorithm = R3GRPO.__new__(R3GRPO)
        config = R3GRPOConfig().rl_module(model="embedded:tiny").training(group_size=GROUP_SIZE)
        algorithm.setup(config.reflection(**reflection))
        return algorithm.history

    return make


@pytest.mark.parametrize(
    ("window", "counted"),
    [({}, 4 * GROUP_SIZE), ({"history_window": None}, 4 * GROUP_SIZE), ({"history_window": 5}, 5)],
)
def test_the_window_is_four_groups_unless_it_is_set(history_of, window, counted):
    history = history_of(**window)
    history.record("q", True, 1.0)
    for _ in range(counted - 1):
        history.record("q", False, 0.0)
    assert history.mean("q", "correct") == pytest.approx(1 / counted)
    history.record("q", False, 0.0)
    assert history.mean("q", "correct") == 0


def test_a_window_of_zero_is_all_attempts(history_of):
    history = history_of(history_window=0)
    history.record("q", True, 1.0)
    for _ in range(99):
        history.record("q", False, 0.0)
    assert history.mean("q", "correct") == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [({}, GROUP_SIZE), ({"min_attempts": None}, GROUP_SIZE), ({"min_attempts": 1}, 1), ({"min_attempts": 5}, 5)],
)
def test_a_query_needs_a_groups_attempts_unless_a_number_is_set(stub, settings, needed):
    algorithm = stub(training={"group_size": GROUP_SIZE}, reflection={"max_share": 1.0, **settings})
    algorithm.truncator = SimpleNamespace(
        quote=lambda entry: Attempt(np.array([1, 2], np.int32), entry.response_tokens, entry.text)
    )
    history = algorithm.history
    history.add(to_entry(sample([10]), 1))
    prompts = []
    for _ in range(needed):
        prompts.append(len(algorithm.build_prompts(["q"])))
        history.record("q", False, 0.0)
    assert prompts == [1] * needed
    plain, reflection = algorithm.build_prompts(["q"])
    assert plain.attempt is None and reflection.attempt.response_tokens.tolist() == [10]
    assert algorithm.record["reflection/prompts"] == 1
