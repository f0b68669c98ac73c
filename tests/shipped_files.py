"""The configuration files that the project ships, by what they are for."""

from pathlib import Path

from algorithms.config.files import configs_folder, read_sections


def training_files() -> list[Path]:
    """The shipped files that say how to train; those called `eval_*` are for `python -m algorithms.evaluate`."""
    return sorted(file for file in configs_folder().glob("*.yaml") if not file.name.startswith("eval_"))


def with_a_task(file: Path) -> tuple[list[Path], list[str]]:
    """A file, and the settings that it needs; one that only says how to train is on top of the quickstart."""
    is_a_method = not {"base", "environment"} & read_sections(file).keys()
    several = ["environment.max_turns=4"] if file.stem == "supo" else []  # it is refused with one
    return [configs_folder() / "quickstart.yaml", file] if is_a_method else [file], several


def evaluation_files() -> list[Path]:
    """The shipped files for `python -m algorithms.evaluate`."""
    return sorted(configs_folder().glob("eval_*.yaml"))
