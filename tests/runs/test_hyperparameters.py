"""TensorBoard's HPARAMS page, read back as TensorBoard reads it."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from algorithms.config.schema import Settings, setting
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tensorboard import hyperparameter_names, hyperparameters

NAMES = hyperparameter_names()
CONFIG = {
    "algorithm": "r3_grpo",
    "run": {"seed": 7, "name": "a"},
    "rl_module": {"model": "embedded:tiny"},
    "training": {"lr": 1e-4, "loss_aggregation": "token", "dual_clip": None},
    "replay": {"enabled": True, "k": 1},
}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "run", "")


def plugin_data(run):
    accumulator = EventAccumulator(str(run.path))
    accumulator.Reload()
    content = accumulator.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    return accumulator, content, start, metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])


def test_a_run_is_a_row_of_its_settings_whose_metrics_are_its_curves(run):
    with Recorder(run) as recorder:
        recorder.record_settings(CONFIG)
        recorder.record({"step": 1, "reward/mean": 0.5, "eval/pass@1": 0.25})
    accumulator, _, start, experiment = plugin_data(run)
    assert start.group_name == "run"
    assert start.hparams["training.lr"].number_value == 1e-4
    assert start.hparams["training.loss_aggregation"].string_value == "token"
    assert start.hparams["replay.enabled"].bool_value is True
    assert [info.name for info in experiment.hparam_infos] == list(NAMES)
    tags = [info.name.tag for info in experiment.metric_infos]
    assert set(accumulator.Tags()["scalars"]) <= set(tags)
    assert accumulator.Scalars("eval/pass@1")[-1].value == 0.25


def test_a_resumed_run_is_still_one_row(run):
    with Recorder(run) as recorder:
        recorder.record_settings(CONFIG)
        recorder.record({"step": 1, "reward/mean": 0.5})
    with Recorder(run, 1) as recorder:
        recorder.record({"step": 2, "reward/mean": 0.75})
    accumulator, content, start, _ = plugin_data(run)
    assert sorted(content) == [metadata.EXPERIMENT_TAG, metadata.SESSION_START_INFO_TAG]
    assert start.hparams["run.seed"].number_value == 7
    assert [event.value for event in accumulator.Scalars("reward/mean")] == [0.5, 0.75]


def test_a_mechanism_that_an_algorithm_does_not_have_is_off():
    values = hyperparameters({"algorithm": "grpo", "training": {"lr": 1.0}}, NAMES)
    assert values == {
        "algorithm": "grpo",
        "training.lr": 1.0,
        "replay.enabled": False,
        "reflection.enabled": False,
        "ranking.enabled": False,
    }


def test_what_is_not_set_has_no_cell():
    assert "training.dual_clip" not in hyperparameters(CONFIG, NAMES)


def test_the_columns_are_the_settings_that_say_so():
    """Held against a copy: runs beside older ones share their columns."""
    assert {name.partition(".")[0] for name in NAMES} == {
        *("algorithm", "run", "rl_module", "environment", "env_runners", "learners", "training", "reward"),
        *("replay", "reflection", "ranking"),
    }
    assert len(NAMES) == len(set(NAMES)) == 55
    assert {"run.seed", "training.lr", "replay.enabled", "ranking.std_floor"} <= set(NAMES)
    assert not {"run.name", "training.grad_clip", "learners.num_learners", "evaluation.k"} & set(NAMES)


class Hints(Settings):
    """A section of a mechanism from elsewhere."""

    enabled: bool = setting(False, "Whether to hint.", hparam=True)
    length: int = setting(8, "Tokens of a hint.")


def test_a_section_from_elsewhere_brings_its_own_columns():
    names = hyperparameter_names({"hints": Hints})
    assert names == [*NAMES, "hints.enabled"]
    assert hyperparameters({"algorithm": "mine"}, names)["hints.enabled"] is False
    assert hyperparameters({"hints": {"enabled": True, "length": 3}}, names)["hints.enabled"] is True
