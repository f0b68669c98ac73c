"""Which settings make an evaluation another measurement."""

import pytest
import yaml

from algorithms.train.stored_run import changed_measurement

SETTINGS = {
    "environment": {"data": "a", "options": {"size": 1}},
    "evaluation": {"samples": 2, "k": [1, 2], "temperature": None, "interval": 0},
    "env_runners": {"temperature": 1.0, "engine": "vllm"},
    "rl_module": {"model": "m", "lora_rank": 0},
    "training": {"lr": 1.0},
}


@pytest.mark.parametrize(
    ("section", "change", "expected"),
    [
        ("environment", {"options": {"size": 2}}, ["environment.options"]),
        ("evaluation", {"samples": 3, "k": [1]}, ["evaluation.k", "evaluation.samples"]),
        ("env_runners", {"temperature": 0.5}, ["env_runners.temperature"]),
        ("rl_module", {"model": "n"}, ["rl_module.model"]),
        ("evaluation", {"interval": 5}, []),
        ("env_runners", {"engine": "transformers"}, []),
        ("training", {"lr": 2.0}, []),
    ],
)
def test_settings_that_make_it_another_measurement_are_told_apart(section, change, expected):
    changed = SETTINGS | {section: SETTINGS[section] | change}
    assert changed_measurement(yaml.dump(SETTINGS), yaml.dump(changed)) == expected
    assert changed_measurement(yaml.dump({"run": {}}), yaml.dump(changed)) == [], "written by an older version"


def test_trainings_temperature_is_not_evaluations_where_that_has_its_own():
    before = SETTINGS | {"evaluation": {"temperature": 0.6}}
    after = before | {"env_runners": {"temperature": 0.5}}
    assert changed_measurement(yaml.dump(before), yaml.dump(after)) == []
