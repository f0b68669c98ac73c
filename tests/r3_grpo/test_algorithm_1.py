"""The table in `R3GRPO`'s docstring says where each line of Algorithm 1 runs."""

import inspect
import re

import pytest

from algorithms.grpo.advantages import StdAdvantage
from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig

CLASSES = {kind.__name__: kind for kind in (*R3GRPO.mechanisms, EpochSampler, RolloutSource, GRPO, StdAdvantage)}
# A line may go on in the next one: the entry stands at the end of one of them.
LINES = re.findall(r"(\w+) +(\w+)\.(\w+)$", inspect.getdoc(R3GRPO).split("```")[1], re.MULTILINE)


def test_every_mechanism_has_a_line():
    assert len(LINES) == 13
    assert {name for _, name, _ in LINES} == set(CLASSES)


@pytest.mark.parametrize(("stage", "name", "method"), LINES, ids=[".".join(line) for line in LINES])
def test_a_line_names_a_stage_and_a_method_that_its_class_defines(stage, name, method):
    assert f"self.{stage}" in inspect.getsource(GRPO.training_step)
    kind = CLASSES[name]
    assert callable(vars(kind)[method]), "defined there, not inherited"
    if issubclass(kind, Mechanism) and kind is not EpochSampler:
        assert method in vars(Mechanism), "a hook"


def test_the_configuration_has_the_mechanisms_of_the_algorithm():
    assert set(R3GRPOConfig.MECHANISMS) == set(R3GRPO.mechanisms)
