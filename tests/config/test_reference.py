"""docs/reference/settings.md is generated, complete and current."""

from collections.abc import Iterator
from pathlib import Path

from algorithms.config.schema import Settings, nested
from algorithms.config.sections import COMMON, BenchmarksSettings, RunSettings
from algorithms.finetuning.config import SFTSettings
from algorithms.grpo.registry import all_sections
from algorithms.train.evaluated_run import EvaluateConfig
from website.settings import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_page_is_current():
    again = "run python -m website.settings > docs/reference/settings.md"
    assert PAGE.read_text(encoding="utf-8") == reference(), again


def keys(name: str, model: type[Settings]) -> Iterator[str]:
    for key, field in model.model_fields.items():
        yield from keys(f"{name}.{key}", within) if (within := nested(field)) else [f"{name}.{key}"]


def test_every_setting_has_a_row_with_a_sentence_and_every_section_a_heading():
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    count = sum(map(len, COMMON.values()))
    common, rows = rows[:count], rows[count:]
    of_commands: dict[str, type[Settings]] = {"sft": SFTSettings, "benchmarks": BenchmarksSettings}
    models: dict[str, type[Settings]] = {"run": RunSettings, **all_sections(), **of_commands}
    names = [key for name, model in models.items() for key in keys(name, model)]
    assert [row.split("`")[1] for row in rows] == names and set(common) < set(rows)
    assert all(row.count("|") == 5 and row.rstrip(" |").endswith(".") for row in rows)
    for name, model in models.items():
        assert f"## {name}\n\n{str(model.__doc__).splitlines()[0]}" in reference()


def test_the_sections_of_an_evaluation_are_on_the_page():
    assert all(f"\n## {name}\n" in reference() for name in EvaluateConfig.SECTIONS)
