"""The folder of one evaluation: its contents, and whether it may be resumed."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.errors import ConfigError, shown
from algorithms.config.loading import known_sections
from algorithms.config.plain_yaml import load_yaml
from algorithms.config.schema import Affects, affects, replaced
from algorithms.evaluate.config import EvaluateConfig
from algorithms.evaluation.resumable import part_size
from algorithms.train.exit_codes import is_disk_full
from algorithms.utils.files import make_folder, write_json, write_text

CONFIG, FINGERPRINT, RESPONSES, SCORES = "evaluation.yaml", "asked.json", "responses", "scores.json"
PART = "part_size"  # in asked.json: problems of a part, whatever engines there are when it is resumed
_MIXTURE_OPTIONS = ("environments", "seed")  # its own arguments: all others are its parts'
_FIX = "fix: another --out, or delete that folder"
_LOST = "fix: restore that file from a copy of the folder, or evaluate again into another one"


def open_results(path: Path, settings: str, fingerprint: Mapping[str, Any], *, complete: bool) -> None:
    """Make the folder, or check that it belongs to the same evaluation, and print if it is resumed or finished.

    Args:
        path: the folder.
        settings: of the evaluation, as YAML.
        fingerprint: of `benchmarks` and `model`, and the size of a part.
        complete: whether every response is there.

    Raises:
        ConfigError: the folder holds something else; the line names what differs.
    """
    if not (path / CONFIG).exists():
        if path.exists() and (not path.is_dir() or any(entry.name != FINGERPRINT for entry in path.iterdir())):
            raise ConfigError(f"--out: {path} is neither empty nor an evaluation; fix: name another folder")
        try:
            make_folder(path)
            write_json(path / FINGERPRINT, fingerprint)
            write_text(path / CONFIG, settings)
        except OSError as error:
            if is_disk_full(error):
                raise
            raise ConfigError(f"--out: {path} cannot be written ({error.strerror}); fix: another folder") from error
        return
    stored, now = read_settings(path), _migrate(yaml.safe_load(settings))
    if others := [f"{name} {values}" for name, values in bearing_on_answers(stored, now).items()]:
        raise ConfigError(f"--out: {path} holds an evaluation with other settings: {'; '.join(others)}; {_FIX}")
    before = read_fingerprint(path)
    if changed := _changes(before, fingerprint):
        raise ConfigError(f"--out: {path} holds answers from before a change: {'; '.join(changed)}; {_FIX}")
    if PART not in before:  # settings that tell it may go with the next line
        write_json(path / FINGERPRINT, {**before, PART: fingerprint[PART]})
    if differences(stored, now):
        write_text(path / CONFIG, settings)
    print(f"{path}: already finished; nothing to sample" if complete else f"resuming in {path}", file=sys.stderr)


def stored_part_size(path: Path) -> int | None:
    """Return how many problems make a part of the folder's evaluation; None where it has not begun one.

    Raises:
        ConfigError: its files cannot be read.
    """
    if not (path / CONFIG).exists():
        return None
    if (size := read_fingerprint(path).get(PART)) is not None:
        return int(size)
    settings = read_settings(path)  # of before the size was written down
    try:
        runners, samples = settings["env_runners"], settings["evaluation"]["samples"]
        return part_size(samples, runners["max_num_seqs"], runners["num_env_runners"])
    except (LookupError, TypeError) as error:
        raise ConfigError(
            f"{path / CONFIG}: does not hold the settings of the evaluation ({error}); {_LOST}"
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return the sections of the folder's evaluation.

    Raises:
        ConfigError: they cannot be read.
    """
    try:
        settings = load_yaml((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / CONFIG}: cannot be read ({error}); {_LOST}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path / CONFIG}: holds no settings; {_LOST}")
    return _migrate(settings)


def _migrate(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of any earlier version as they are written today."""
    benchmarks, environment = settings.get("benchmarks") or {}, settings.get("environment") or {}
    if benchmarks:  # a folder of before answers had a confidence
        benchmarks.setdefault("confidence", False)
        benchmarks.setdefault("confidence_token", None)
    if benchmarks.get("hard_for"):  # a folder of before it was written down as an absolute one
        benchmarks["hard_for"] = str(Path(benchmarks["hard_for"]).expanduser().resolve())
    options = environment.get("options") or {}
    if isinstance(parts := options.get("environments"), Mapping):  # what all parts have in common was beside them
        common = {key: value for key, value in options.items() if key not in _MIXTURE_OPTIONS}
        named = {name: {**part, "options": {**common, **(part.get("options") or {})}} for name, part in parts.items()}
        environment["options"] = {**{key: options[key] for key in options if key not in common}, "environments": named}
    return settings


def read_fingerprint(path: Path) -> dict[str, Any]:
    """Return the digests of the problems and the model that the folder's evaluation is of.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        stored: dict[str, Any] = json.loads((path / FINGERPRINT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} does not name the problems of the evaluation ({error}); {_LOST}") from error
    return stored


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List what is not as it was; a model that is not on this machine any more has not changed."""
    names = dict.fromkeys([*before["benchmarks"], *now["benchmarks"]])
    found = [
        f"the problems of {name} differ"
        for name in names
        if before["benchmarks"].get(name) != now["benchmarks"].get(name)
    ]
    if None not in (before["model"], now["model"]) and before["model"] != now["model"]:
        found.append("the files of the model differ")
    return found


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Return `A → B` for each setting that is not the same in both, by `section.key`.

    Args:
        first: sections, as in `evaluation.yaml`.
        second: of the other evaluation.
    """
    one, other = dict(_flat(first)), dict(_flat(second))
    return {
        name: f"{_shown(one, name)} → {_shown(other, name)}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name, _shown) != other.get(name, _shown)
    }


def bearing_on_answers(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Return those of these differences that bear on which answers are sampled."""
    sections = known_sections(EvaluateConfig())
    without_effect = replaced(sections, first) & replaced(sections, second)
    return {
        name: values
        for name, values in differences(first, second).items()
        if name not in without_effect and Affects.ANSWERS in affects(sections, name, unknown=Affects.ANSWERS)
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names, those of mappings one by one; an empty mapping has none."""
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return shown(settings[name]) if name in settings else "not set"
