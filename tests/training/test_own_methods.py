"""A method of one's own that returns what a step cannot use ends the run in a line that names it."""

import numpy as np
import pytest

from algorithms.grpo.plugin_checks import PluginError

from .runs_of import train

SOURCE = '''
import numpy as np
from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.mechanism import Mechanism, Settings, term


class NotANumber(AdvantageEstimator):
    def advantages(self, group):
        return self.rewards(group) * np.nan


class Costly(AdvantageEstimator):
    def advantages(self, group):
        for sample in group.samples:
            sample.terms[term("nonsense")] = 1.0
        return self.rewards(group) * 0.0


class Aiming(AdvantageEstimator):
    def advantages(self, group):
        for sample in group.samples:
            sample.inputs["targets"] = np.zeros(99)
        return self.rewards(group) * 0.0


class Late(Mechanism):
    def advantages(self, group, advantages):
        group.samples[0].terms[term("nonsense")] = 1.0
        return advantages


class Short(Mechanism):
    def advantages(self, group, advantages):
        return advantages[:-1]


class Nothing(Mechanism):
    def follow_up(self, groups, round):
        return None


class MemorySettings(Settings):
    """Remember."""


class Memory(Mechanism):
    section, settings_class = "memory", MemorySettings

    def state(self):
        return {}, {"seen": {1, 2}}
'''


@pytest.fixture(autouse=True)
def odd_methods(tmp_path, monkeypatch):
    (tmp_path / "odd_methods.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("training", "line"),
    [
        (
            {"advantage": "odd_methods:NotANumber"},
            "odd_methods:NotANumber.advantages returned nan for a group with the",
        ),
        ({"advantage": "odd_methods:Costly"}, "odd_methods:Costly.advantages set the term .*nonsense"),
        (
            {"advantage": "odd_methods:Aiming"},
            r"odd_methods:Aiming.advantages set inputs\['targets'\] to an array of sh",
        ),
        ({"mechanisms": ["covariance", "odd_methods:Late"]}, "odd_methods:Late.advantages set the term .*nonsense"),
        ({"mechanisms": ["odd_methods:Short"]}, "odd_methods:Short.advantages returned 3 values for a group of 4"),
        ({"mechanisms": ["odd_methods:Nothing"]}, "odd_methods:Nothing.follow_up returned None; fix: return a list"),
    ],
)
def test_what_a_step_cannot_use_ends_it_before_the_policy_changes(grpo_config, build, training, line):
    algorithm = build(grpo_config.training(**training, group_size=4))
    with pytest.raises(PluginError, match=line):
        train(algorithm, 1)
    assert algorithm.can_be_saved and algorithm.steps_done == 0
    assert all(np.isfinite(array).all() for array in algorithm.get_training_state()[0].values())


def test_a_state_that_fits_no_checkpoint_is_refused_before_the_first_step(grpo_config, build):
    with pytest.raises(PluginError, match=r"odd_methods:Memory.state returned set is not a JSON value: \{1, 2\}"):
        build(grpo_config.training(mechanisms=["odd_methods:Memory"]))
