"""The contents of a run directory, read once; the run may still be training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.plain_yaml import load_yaml
from algorithms.config.secrets import without_secrets
from algorithms.train.integrity import check_record
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.errors import InputError


@dataclass(frozen=True)
class RunData:
    """One run.

    Args:
        label: its name, distinct from those of the page's other runs.
        directory: where it lies.
        config: section → setting → value, and `algorithm`.
        rows: of metrics.jsonl, in order; at least one.
        summary: of summary.json; empty until the run is done.
        evaluation: of evaluation.json; empty before the first.
    """

    label: str
    directory: RunDirectory
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    evaluation: Mapping[str, Any]

    def setting(self, section: str, key: str) -> Any:
        """Return a value of the configuration; None if it is missing."""
        return (self.config.get(section) or {}).get(key)

    @property
    def steps(self) -> int:
        """Return the last step that is recorded."""
        return int(self.rows[-1]["step"])


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read every run.

    Raises:
        ReportError: a folder is no run, has no step yet, is named twice, or has a file that cannot be read.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if (place := path.resolve()) in found:
            raise ReportError(f"{path}: named twice; fix: name every run once")
        found[place] = path
    return [_read(path, label) for path, label in zip(found, _labels(list(found)), strict=True)]


def _read(path: Path, label: str) -> RunData:
    try:
        directory = RunDirectory.open(path)
        check_record(directory)
        rows = directory.read_metrics()
    except (OSError, ValueError) as error:
        raise ReportError(str(error)) from error
    if not rows:
        raise ReportError(f"{path}: no step has been recorded yet; fix: wait for the first step of the run")
    return RunData(
        label=label,
        directory=directory,
        config=without_secrets(_config(directory.config_file)),
        rows=rows,
        summary=read_object(directory.summary_file),
        evaluation=read_object(directory.evaluation_file),
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no such file.

    Raises:
        ReportError: the file holds something else.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{path}: cannot be read ({error}); fix: move it away, the report works without it"
        ) from error
    if not isinstance(value, dict):
        raise ReportError(f"{path}: is not a JSON object; fix: move it away, the report works without it")
    return value


def _config(path: Path) -> dict[str, Any]:
    try:
        value = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); fix: put back the file that the run wrote") from error
    if not isinstance(value, dict):
        raise ReportError(f"{path}: holds no settings; fix: put back the file that the run wrote")
    return value


def _labels(paths: Sequence[Path]) -> list[str]:
    """Label runs by their folders, with as many parents as make them distinct."""
    deepest = max((len(path.parts) for path in paths), default=1)
    for depth in range(1, deepest + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in paths]


class ReportError(InputError):
    """A folder that no report can be made of; one line that names the file and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


# Where a run lies and what it is called do not say what it did.
_NAMES = ("run.name", "run.dir")


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Map `section.key` to the value as YAML text; `algorithm` has no section."""
    flat: dict[str, str] = {}
    for section, values in config.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{key}": _text(value) for key, value in values.items()}
        else:
            flat[section] = _text(values)
    return flat


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """List the names whose values differ between runs, in the order of their appearance."""
    names = dict.fromkeys(name for one in settings for name in one if name not in _NAMES)
    return [name for name in names if len({one.get(name) for one in settings}) > 1]


def _text(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )
