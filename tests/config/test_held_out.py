"""Held-out problems that differ from training problems in their numbers alone are counted, in one warning."""

import json
import logging
from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.environments import validate_environment
from r3env.data.templates import template

STORY = "{} has {} red apples and buys {} more at the old market. How many are there now?"


def write(file: Path, problems: list[str]) -> str:
    file.write_text("".join(json.dumps({"problem": text, "answer": str(n)}) + "\n" for n, text in enumerate(problems)))
    return str(file)


def warned(caplog: pytest.LogCaptureFixture, tmp_path: Path, trained: list[str], held_out: list[str]) -> list[str]:
    config = GRPOConfig().environment(data=write(tmp_path / "train.jsonl", trained))
    config = config.evaluation(data=write(tmp_path / "held_out.jsonl", held_out))
    with caplog.at_level(logging.WARNING):
        validate_environment(config)
    return [record.getMessage() for record in caplog.records if "in their numbers alone" in record.getMessage()]


def test_a_warning_counts_them_and_shows_one(caplog, tmp_path):
    trained = [STORY.format("Ann", 3, "1,200"), STORY.format("Bob", 5, 6), STORY.format("Ann", 7, 1)]
    held_out = [STORY.format("ann", 40.5, 2), STORY.format("Ann", 9, 9), STORY.format("Eve", 5, 6), "1 + 1 = ?"]
    (line,) = warned(caplog, tmp_path, trained, held_out)
    assert line.startswith("evaluation.data: 2 of its 4 problems differ from training problems in their numbers alone")
    assert trained[0][:40] in line


def test_other_words_and_bare_sums_are_no_reason_for_one(caplog, tmp_path):
    trained = [STORY.format("Ann", 3, 4), "1 + 1 = ?"]
    assert not warned(caplog, tmp_path, trained, [STORY.format("Eve", 3, 4), "2 + 2 = ?"])


def test_generated_problems_share_their_templates_by_intent(caplog):
    config = GRPOConfig().environment("r3env/ReasoningGym-v0", data="leg_counting#seed=1,size=20")
    with caplog.at_level(logging.WARNING):
        validate_environment(config.evaluation(data="leg_counting#seed=1000,size=20"))
    assert "in their numbers alone" not in caplog.text


def test_the_same_problem_is_refused_as_before(caplog, tmp_path):
    trained = [STORY.format("Ann", 3, 4), STORY.format("Bob", 1, 2)]
    with pytest.raises(ConfigError, match=r"evaluation.data: 1 of its 2 problems are training problems too, such as"):
        warned(caplog, tmp_path, trained, [trained[0], STORY.format("Bob", 3, 2)])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Tom has 5 cats and buys 3.", "Tom has 12.5 cats and buys 1,000.", True),
        ("Tom has 5 cats and buys 3 .", "TOM has 5 cats  and buys 3.", True),
        ("Tom has 5 cats and buys 3.", "Tom has 5 dogs and buys 3.", False),
        ("Find x such that x + 3 is prime.", "Find x such that x - 3 is prime.", False),
    ],
)
def test_a_template_is_a_problem_without_its_numbers(one, other, same):
    assert template(one) is not None and (template(one) == template(other)) is same


def test_too_few_words_have_no_template():
    assert template("12 + 5 * 3 = ?") is None and template("Solve for x: 2x = 4") is None


def mixture(tmp_path: Path) -> tuple[GRPOConfig, dict[str, str]]:
    """A mixture whose parts have data of their own, and held-out data for each."""
    files = {
        name: write(tmp_path / f"{name}.jsonl", [f"{name} of 1?", f"{name} of 2?"]) for name in ("a", "b", "c", "d")
    }
    parts = {name: {"id": "r3env/Math-v0", "weight": 2, "options": {"data": files[name]}} for name in ("a", "b")}
    return GRPOConfig().environment("r3env/Mixture-v0", options={"environments": parts}), files


def test_held_out_problems_of_a_mixture_are_named_by_part(tmp_path):
    config, files = mixture(tmp_path)
    facts = validate_environment(config.evaluation(data={"b": files["d"]}))
    assert (facts.queries, facts.held_out) == (4, 2)
    held_out = config.evaluation_settings.held_out(config.env_config)
    assert held_out == {"environments": {"b": {"id": "r3env/Math-v0", "weight": 2, "options": {"data": files["d"]}}}}
    assert validate_environment(config.evaluation(data={"a": files["c"], "b": files["d"]})).held_out == 4
    with pytest.raises(ConfigError, match="evaluation.data: 2 of its 2 problems are training problems too"):
        validate_environment(config.evaluation(data={"b": files["a"]}))
    config.check_settings()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("c.jsonl", "evaluation.data: 'c.jsonl' reaches no part of the mixture, .*: {a: SOURCE, b: SOURCE}$"),
        (
            {"z": "c.jsonl"},
            "evaluation.data: 'z' is no part of environment.options.environments; fix: name one of a, b$",
        ),
        ({}, "evaluation.data: names no part of a mixture; fix: "),
    ],
)
def test_held_out_problems_that_reach_no_part_are_refused(tmp_path, data, line):
    with pytest.raises(ConfigError, match=f"^{line}"):
        mixture(tmp_path)[0].evaluation(data=data).check_settings()
    with pytest.raises(ConfigError, match="^evaluation.data: 'a' is no part .*; fix: name the parts there$"):
        GRPOConfig().evaluation(data={"a": "c.jsonl"}).check_settings()


def test_columns_of_all_parts_and_those_of_held_out_problems_reach_the_parts(tmp_path):
    named = tmp_path / "named.jsonl"
    named.write_text('{"q": "1 of e?", "answer": "1"}\n')
    config, files = mixture(tmp_path)
    config.environment(columns={"problem": "q"}).evaluation(data={"a": str(named), "b": "preset:math500"})
    parts = config.evaluation_settings.held_out(config.env_config)["environments"]
    assert parts["a"]["options"] == {"data": str(named), "columns": {"problem": "q"}}
    assert parts["b"]["options"] == {"data": "preset:math500"}, "a preset knows its own"
    parts = config.evaluation(columns={"problem": "p"}).evaluation_settings.held_out(config.env_config)["environments"]
    assert parts["a"]["options"]["columns"] == {"problem": "p"}
