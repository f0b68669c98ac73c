"""An evaluation takes the test split of a preset that has one, where training takes its training split."""

import json
from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.evaluate import parser
from algorithms.evaluation.benchmarks import settings_yaml
from algorithms.evaluation.problems import make_environment
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.environments import validate_environment
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from algorithms.train.evaluated_run import EvaluateConfig, resolve_config
from r3env.data.presets import PRESETS
from r3env.data.sources import evaluation_source, parse_source

SAMPLES = Path(__file__).parents[1] / "r3env" / "samples"
# The presets that have a split to train on and another to evaluate on.
WITH_BOTH = ["gsm8k", "math", "svamp", "mawps"]


@pytest.fixture
def hub(monkeypatch):
    """A Hub with the known data sets: their true columns, and the split's name before each problem."""

    def rows(source):
        name = next(name for name, preset in PRESETS.items() if preset is source.preset)
        lines = (SAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        column = "Body" if name == "svamp" else source.preset.columns["problem"]  # its problem begins with the story
        for number, row in enumerate(map(json.loads, lines), start=1):
            yield number, {**row, column: f"{source.split}: {row[column]}"}

    monkeypatch.setattr("r3env.data.readers.hub_rows", rows)


def splits(environment):
    return {environment.query(uid).problem.partition(":")[0] for uid in environment.uids}


def resolved(*arguments):
    return resolve_config(parser().parse_intermixed_args(["--model", "embedded:tiny", *arguments]))


@pytest.mark.parametrize("name", WITH_BOTH)
@pytest.mark.parametrize("written", ["preset:{name}", "{id}", "{id}@abc"])
def test_a_benchmark_is_read_from_its_test_split_and_says_so(name, written, hub, tmp_path):
    source = written.format(name=name, id=PRESETS[name].hub_id)
    config, seed = resolved("--data", f"it={source}")
    assert splits(make_environment(config)) == {"test"}
    file = tmp_path / "evaluation.yaml"
    file.write_text(settings_yaml(config, seed))
    assert f"it: {source}#test" in file.read_text()
    again, seed = resolved("--config", str(file))
    make_environment(again)
    assert settings_yaml(again, seed) == file.read_text()


def test_a_split_that_is_named_is_the_one_that_is_read(hub):
    assert splits(make_environment(resolved("--data", "preset:gsm8k#train")[0])) == {"train"}


@pytest.mark.parametrize("name", PRESETS)
def test_other_presets_are_evaluated_on_their_only_split(name):
    asked = parse_source(evaluation_source(f"preset:{name}"))
    assert asked.split == ("test" if name in WITH_BOTH else PRESETS[name].split)


@pytest.mark.parametrize("text", ["owner/unknown", "embedded:train", "mine.jsonl", "chain_sum#size=20", "preset:gsm9k"])
def test_data_that_no_preset_knows_are_named_as_before(text):
    assert evaluation_source(text) == text


@pytest.mark.parametrize("name", WITH_BOTH)
def test_a_run_trains_on_one_split_and_evaluates_on_the_other(name, hub):
    config = GRPOConfig().environment(data=f"preset:{name}").evaluation(data=f"preset:{name}")
    made = environment_makers(config)
    assert splits(made[Split.TRAIN]().unwrapped) == {"train"}
    assert splits(made[Split.EVALUATION]().unwrapped) == {"test"}
    facts = validate_environment(config, fetch=True)
    assert facts.queries == facts.held_out > 1
    heldout, _ = resolved(f"environment.data=preset:{name}", f"evaluation.data=preset:{name}")
    assert splits(make_environment(heldout)) == {"test"}


def test_training_on_the_test_split_is_refused_where_it_is_held_out_too():
    config = GRPOConfig().environment(data="preset:gsm8k#test").evaluation(data="preset:gsm8k")
    with pytest.raises(ConfigError, match=r"^evaluation\.data: 'preset:gsm8k#test' is environment\.data too; fix"):
        config.validate()


def test_the_configuration_for_gsm8k_takes_the_questions_that_are_quoted(hub):
    config, _ = load("configs/eval_gsm8k.yaml", [], EvaluateConfig)
    config.apply({"rl_module": {"model": "embedded:tiny"}})
    assert splits(make_environment(config)) == {"test"}
