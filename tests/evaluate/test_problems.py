"""Which problems an evaluation asks: those that the configured environment would have, and no others."""

import json
from pathlib import Path

import pytest
import yaml

from algorithms.config.errors import ConfigError
from algorithms.evaluate import parser
from algorithms.evaluation.benchmarks import results_folder, settings_yaml
from algorithms.evaluation.problems import make_environment, select_problems
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from algorithms.train.evaluated_run import resolve_config
from r3env.envs.reasoning_gym import ReasoningGymEnv

RG = "r3env/ReasoningGym-v0"
PARTS = {
    "sums": {"id": RG, "weight": 2, "options": {"data": "chain_sum#size=20"}},
    "boxes": {"id": "r3env/Math-v0", "weight": 1, "options": {"data": "embedded:heldout", "limit": 12}},
}


@pytest.fixture
def configured(tmp_path):
    """An evaluation's configuration from a run's sections, `--data` and overrides."""

    def make(sections, *arguments):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
        named = ["--config", str(tmp_path / "run.yaml"), "--model", "embedded:tiny", *arguments]
        return resolve_config(parser().parse_intermixed_args(named))[0]

    return make


def engines_environment(config):
    """What the engines' processes make."""
    return environment_makers(config)[Split.EVALUATION]().unwrapped


def test_a_mixture_is_asked_its_own_parts(configured, tmp_path):
    options = {"environments": PARTS, "seed": 4}
    config = configured({"environment": {"id": "r3env/Mixture-v0", "options": options, "instruction": "Go."}})
    environment = make_environment(config)
    assert environment.seed == 4 and environment.weights == {"sums": 2, "boxes": 1}
    asked = select_problems(environment, config)
    assert {uid.partition("/")[0] for uid in asked} == {"sums", "boxes"} and len(asked) == 30
    there = engines_environment(config)
    assert list(there.uids) == asked and there.prompt(there.query(asked[0])).endswith("\n\nGo.")
    named = results_folder(None, config, environment.parts)
    assert named == Path("evaluations/embedded-tiny-sums-boxes")


def test_the_held_out_problems_of_parts_are_those_of_a_mixture_alone(configured):
    run = {
        "environment": {"id": "r3env/Mixture-v0", "options": {"environments": PARTS}},
        "evaluation": {"data": {"sums": "chain_sum#seed=9,size=5"}},
    }
    environment = make_environment(configured(run))
    assert list(environment.parts) == ["sums"] and len(environment.uids) == 5
    other = configured(run, "--data", "a=embedded:heldout", "environment.id=r3env/Math-v0", "environment.options={}")
    assert list(make_environment(other).parts) == ["a"]


def test_a_mixture_without_options_is_asked_its_default_parts(configured):
    config = configured({"environment": {"id": "r3env/Mixture-v0", "max_turns": 1}})
    assert set(make_environment(config).parts) == {"one_turn", "two_turns"}


def test_the_held_out_problems_of_a_mixture_s_run_are_those_of_its_own_evaluation(configured):
    options = {"environments": {name: {"id": "r3env/Math-v0"} for name in ("a", "b")}}
    environment = {"id": "r3env/Mixture-v0", "data": "embedded:train", "options": options}
    config = configured({"environment": environment, "evaluation": {"data": "embedded:heldout"}})
    in_training = list(engines_environment(config).uids)
    assert select_problems(make_environment(config), config) == in_training == list(engines_environment(config).uids)


def test_a_mixture_takes_no_other_problems(configured):
    config = configured({"environment": {"id": "r3env/Mixture-v0"}}, "--data", "m=embedded:heldout")
    with pytest.raises(ConfigError, match=r"environment\.id: .*fix: environment\.id=r3env/Math-v0 environment\.opt"):
        make_environment(config)


@pytest.mark.parametrize(
    ("environment", "data"),
    [
        ({"id": "r3env/Math-v0", "instruction": "Go."}, {"a": "embedded:heldout", "b": "embedded:train"}),
        ({"id": RG, "options": {"seed": 7, "size": 5}}, {"sums": "chain_sum"}),
        ({"id": "r3env/Mixture-v0", "options": {"environments": PARTS, "seed": 4, "max_turns": 2}}, {}),
    ],
)
def test_what_was_asked_is_asked_again_from_the_folder_s_own_file(environment, data, configured, tmp_path):
    named = [text for name in data for text in ("--data", f"{name}={data[name]}")]
    config = configured({"environment": environment}, *named)
    first = make_environment(config)
    written = settings_yaml(config, 3)
    (tmp_path / "evaluation.yaml").write_text(written)
    arguments = ["--config", str(tmp_path / "evaluation.yaml")]
    again, seed = resolve_config(parser().parse_intermixed_args(arguments))
    second = make_environment(again)
    assert list(second.uids) == list(first.uids) and seed == 3
    assert [second.prompt(second.query(uid)) for uid in second.uids] == [
        first.prompt(first.query(uid)) for uid in first.uids
    ]
    assert settings_yaml(again, seed) == written
    other = resolve_config(parser().parse_intermixed_args([*arguments, "--data", "a=embedded:train"]))[0]
    with pytest.raises(ConfigError, match=r"environment\.id: .*benchmarks\.data cannot replace"):
        make_environment(other)


@pytest.mark.parametrize("parts", [None, [], {"m": None}, {"m": {"options": None}}, {"m": {"options": {"data": 1}}}])
def test_a_mixture_of_other_parts_than_the_benchmarks_is_refused_however_it_is_written(parts, configured):
    environment = {"id": "r3env/Mixture-v0", "options": {"environments": parts}}
    config = configured({"environment": environment}, "--data", "m=embedded:heldout")
    with pytest.raises(ConfigError, match=r"benchmarks\.data cannot replace"):
        make_environment(config)


def test_options_such_as_the_seed_are_the_parts_own(configured):
    options = {"seed": 7, "size": 5, "level": 1}
    config = configured({"environment": {"id": RG, "options": options}}, "--data", "sums=chain_sum")
    asked, alone = select_problems(make_environment(config), config), ReasoningGymEnv("chain_sum", **options)
    assert asked == [f"sums/{uid}" for uid in alone.uids] and len(asked) == 5
    there = engines_environment(config)
    assert there.query(asked[0]).problem == alone.query(alone.uids[0]).problem
    other = ReasoningGymEnv("chain_sum", **{**options, "seed": 0})
    assert alone.query(alone.uids[0]).problem != other.query(other.uids[0]).problem


@pytest.mark.parametrize("section", ["environment", "evaluation", "benchmarks"])
def test_columns_are_for_data_that_no_preset_knows(section, configured, tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"problem": "1 + 1?", "solution": "2"}) + "\n")
    data = {
        "mine": str(tmp_path / "mine.jsonl"),
        "preset": "preset:math500",
        "hub": "HuggingFaceH4/aime_2024",
        "unknown": "owner/unknown",
    }
    sections = {section: {"columns": {"answer": "solution"}}}
    config = configured(sections, *(text for name in data for text in ("--data", f"{name}={data[name]}")))
    monkeypatch.setattr("algorithms.evaluation.problems.MixtureEnv.queries", {})
    columns = {name: part.columns for name, part in make_environment(config).parts.items()}
    own = {"answer": "solution"}
    assert columns == {"mine": own, "preset": {}, "hub": {}, "unknown": own}


@pytest.mark.parametrize("source", ["preset:math500", "HuggingFaceH4/aime_2024", "mine.jsonl"])
@pytest.mark.parametrize("columns", [{}, {"answer": "own"}])
@pytest.mark.parametrize("mixture", [False, True])
def test_a_run_s_held_out_problems_have_the_columns_of_its_training(source, columns, mixture, configured, monkeypatch):
    """Said of them, columns win over a preset's; those of the training problems do not."""
    options = {"environments": {"heldout": {"id": "r3env/Math-v0"}}} if mixture else {}
    environment = {
        "id": "r3env/Mixture-v0" if mixture else "r3env/Math-v0",
        "data": "train.jsonl",
        "columns": {"answer": "solution"},
        "options": options,
    }
    config = configured({"environment": environment, "evaluation": {"data": source, "columns": columns}})
    in_training = engines_environment(config)
    in_training = in_training.parts["heldout"] if mixture else in_training
    monkeypatch.setattr("algorithms.evaluation.problems.MixtureEnv.queries", {})
    asked = make_environment(config).parts["heldout"]
    there = engines_environment(config).parts["heldout"]
    assert asked.columns == there.columns == in_training.columns
    inherited = {"answer": "solution"} if source == "mine.jsonl" else {}
    assert asked.columns == (columns or inherited)


def test_columns_go_to_what_only_the_environment_can_read(configured, tmp_path):
    """`parse_source` refuses a task's name."""
    config = configured({"environment": {"id": RG, "columns": {"answer": "solution"}}}, "--data", "sums=chain_sum")
    with pytest.raises(ConfigError, match="unknown option 'columns'"):
        make_environment(config)


def test_the_folder_that_chose_the_problems_is_known_from_everywhere(configured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configured({}, "--data", "m=embedded:heldout", "benchmarks.hard_for=evaluations/base")
    assert config.benchmarks_settings.hard_for == str((tmp_path / "evaluations/base").resolve())
    assert configured({}, "--data", "m=embedded:heldout").benchmarks_settings.hard_for is None
