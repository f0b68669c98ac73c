"""Read from section `run`, before Ray is imported: the restarts, and whether the run exists already."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.errors import ConfigError
from algorithms.config.files import file_layers
from algorithms.train.run_directory import RunDirectory, run_of

_SECTION = "run"
_PREFIX = f"{_SECTION}."


def wanted_restarts(files: Sequence[str], overrides: Sequence[str], resumed: str | None) -> int:
    """Return `run.restarts` as the training command will read it; 0 where it will refuse its input.

    Args:
        files: what `--config` names.
        overrides: `section.key=value`.
        resumed: what `--resume` names.
    """
    try:
        sources = [run_of(Path(resumed)) / "config.yaml"] if resumed else files
        value = _run_section(sources, overrides).get("restarts")
        value = yaml.safe_load(value) if isinstance(value, str) else value
    except (ConfigError, yaml.YAMLError):
        return 0
    return value if isinstance(value, int) and value > 0 else 0


def begun_run(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """Return the run directory that `run.dir` and `run.name` name, if a run was begun there.

    Raises:
        ConfigError: a file cannot be read, or no name is set: without one each start is a run of its own.
    """
    section = _run_section(files, overrides)
    name = section.get("name")
    if not name or not isinstance(name, str):
        raise ConfigError("run.name: --continue finds the run by it; fix: set run.name, and run.dir if it is not runs")
    parent = section.get("dir") or "runs"
    try:
        return RunDirectory.open(Path(str(parent)).expanduser() / name).path
    except ValueError:
        return None


def _run_section(files: Sequence[str | Path], overrides: Sequence[str]) -> dict[str, Any]:
    """Section `run` as files and overrides have it, values of overrides as text; nothing is checked."""
    values: dict[str, Any] = {}
    for layer in file_layers(*(Path(file).expanduser() for file in files)):
        section = layer.sections.get(_SECTION)
        values |= section if isinstance(section, dict) else {}
    given = (text.removeprefix(_PREFIX).partition("=") for text in overrides if text.startswith(_PREFIX))
    return values | {key: value for key, _, value in given}
