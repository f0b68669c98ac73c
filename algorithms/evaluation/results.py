"""The folder of one evaluation: its contents, the digests of what was asked, and whether it may be resumed."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.errors import ConfigError, shown
from algorithms.config.machine import RLModuleSettings
from algorithms.config.plain_yaml import load_yaml
from algorithms.config.schema import Affects, affects, replaced
from algorithms.evaluation.config import KNOWN_SECTIONS
from algorithms.models.names import resolve_model
from algorithms.utils.errors import is_disk_full
from algorithms.utils.files import make_folder, read_file, write_json, write_text
from r3env.core import Query
from r3env.printable import printable

CONFIG, FINGERPRINT, RESPONSES, SCORES = "evaluation.yaml", "asked.json", "responses", "scores.json"
PART = "part_size"  # in asked.json: problems of a part, whatever engines there are when it is resumed
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
    stored, now = read_settings(path), yaml.safe_load(settings)
    if others := [f"{name} {values}" for name, values in bearing_on_answers(stored, now).items()]:
        raise ConfigError(f"--out: {path} holds an evaluation with other settings: {'; '.join(others)}; {_FIX}")
    before = read_fingerprint(path)
    if changed := _changes(before, fingerprint):
        raise ConfigError(f"--out: {path} holds answers from before a change: {'; '.join(changed)}; {_FIX}")
    if differences(stored, now):
        write_text(path / CONFIG, settings)
    print(
        printable(f"{path}: already finished; nothing to sample" if complete else f"resuming in {path}"),
        file=sys.stderr,
    )


def stored_part_size(path: Path) -> int | None:
    """Return how many problems make a part of the folder's evaluation; None where it has not begun one.

    Raises:
        ConfigError: its files cannot be read.
    """
    if not (path / CONFIG).exists():
        return None
    size = read_fingerprint(path).get(PART)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"{path / FINGERPRINT}: does not name the size of a part; {_LOST}")
    return size


def read_settings(path: Path) -> dict[str, Any]:
    """Return the sections of the folder's evaluation.

    Raises:
        ConfigError: they cannot be read.
    """
    try:
        settings = load_yaml(read_file(path / CONFIG).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / CONFIG}: cannot be read ({error}); {_LOST}") from error
    if not isinstance(settings, dict) or not all(isinstance(settings.get(one) or {}, dict) for one in KNOWN_SECTIONS):
        raise ConfigError(f"{path / CONFIG}: holds no settings; {_LOST}")
    return settings


def read_fingerprint(path: Path) -> dict[str, Any]:
    """Return the digests of the problems and the model that the folder's evaluation is of.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = path / FINGERPRINT
    try:
        stored = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} does not name the problems of the evaluation ({error}); {_LOST}") from error
    benchmarks = stored.get("benchmarks") if isinstance(stored, dict) else None
    if not isinstance(benchmarks, dict) or not all(
        isinstance(one, dict) and "digest" in one for one in benchmarks.values()
    ):
        raise ConfigError(f"{file}: does not name the problems of the evaluation; {_LOST}")
    return dict(stored)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List what is not as it was; a model that is not on this machine any more has not changed."""
    names = dict.fromkeys([*before["benchmarks"], *now["benchmarks"]])
    found = [
        f"the problems of {name} differ"
        for name in names
        if before["benchmarks"].get(name) != now["benchmarks"].get(name)
    ]
    if None not in (before.get("model"), now["model"]) and before["model"] != now["model"]:
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
    without_effect = replaced(KNOWN_SECTIONS, first) & replaced(KNOWN_SECTIONS, second)
    return {
        name: values
        for name, values in differences(first, second).items()
        if name not in without_effect and Affects.ANSWERS in affects(KNOWN_SECTIONS, name, unknown=Affects.ANSWERS)
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


_MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
_WHOLE = 16 * 2**20  # bytes up to which a file is read from end to end
_BLOCKS, _BLOCK = 64, 2**16


def digest_problems(queries: Mapping[str, Query], uids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how many problems a benchmark has, and a digest of their texts, answers and levels, by benchmark.

    Args:
        queries: by uid, with the benchmark's name before it.
        uids: the problems that are sampled, in their order.
    """
    counts: dict[str, int] = {}
    digests: dict[str, Any] = {}
    for uid in uids:
        name, query = uid.partition("/")[0], queries[uid]
        counts[name] = counts.get(name, 0) + 1
        turns = (query.turns,) if query.turns else ()
        text = repr((uid, query.problem, query.answer, query.level, *turns))
        digests.setdefault(name, hashlib.sha256()).update(text.encode("utf-8", "surrogatepass"))
    return {name: {"problems": count, "digest": digests[name].hexdigest()[:32]} for name, count in counts.items()}


def digest_model(settings: RLModuleSettings) -> str | None:
    """Return a digest of the model's files, or the commit of a Hub model; None where it is not on this machine.

    Of large files only some blocks are read: training moves weights everywhere.

    Args:
        settings: the `rl_module` section.
    """
    folder = Path(resolve_model(settings.model))
    if not folder.is_dir():
        return _cached_commit(str(folder), settings.revision)
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in _MODEL_FILES and file.is_file():
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            _add(digest, file)
    return digest.hexdigest()[:32]


def _cached_commit(repo: str, revision: str | None) -> str | None:
    import huggingface_hub

    try:
        file = huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision)
    except ValueError:  # no name that the Hub could have
        return None
    return Path(file).parent.name if isinstance(file, str) else None


def _add(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            digest.update(file.read())
            return
        for block in range(_BLOCKS):
            file.seek(block * (size - _BLOCK) // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
