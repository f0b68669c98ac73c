"""Resolve a data set's name: a file, embedded problems, a preset, or a data set on the Hub."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from r3env.data.presets import ALIASES, PRESETS, Preset, find_preset
from r3env.printable import printable
from r3env.spelling import nearest

EMBEDDED = ("train", "heldout", "variants")
FILE_TYPES = (".jsonl", ".json", ".parquet", ".csv")
_HUB_ID = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<configuration>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?(?:#(?P<split>[^#]+))?"
)
_PRESET = re.compile(r"preset:(?P<preset>[^@#:]*)(?:@(?P<revision>[\w./-]+))?(?:#(?P<split>[^#]+))?")
_PRESET_OF_FILE = re.compile(r"preset:(?P<preset>[^@#:]*):(?P<path>.+)")


class DataError(ValueError):
    """A data set that cannot be used; the message is one line that names the place and the fix."""

    @classmethod
    def at(cls, source: str, problem: str, fix: str, *, row: int | None = None) -> Self:
        """Compose the line from the source, the row (counting from 1), the fault and the fix."""
        place = source if row is None else f"{source}: row {row}"
        return cls(printable(" ".join(f"{place}: {problem}; fix: {fix}".split())))


class MissingColumnError(DataError):
    """A row that lacks a column: `column` in `row`."""

    column: str = ""
    row: int = 0


@dataclass(frozen=True)
class Source:
    """Where the rows of a data set come from.

    Args:
        text: As the user wrote it, for messages.
        kind: A local file, embedded problems or a data set on the Hub.
        name: Path of the file, name of the embedded problems, or Hub id.
        configuration: Configuration of a Hub data set.
        revision: Branch, tag or commit of a Hub data set; None for its main branch.
        split: Split of a Hub data set.
        preset: How its rows are to be read, if that is known.
    """

    text: str
    kind: Literal["file", "embedded", "hub"]
    name: str
    configuration: str | None = None
    revision: str | None = None
    split: str = "train"
    preset: Preset | None = None


def parse_source(
    text: str, *, split: str | None = None, revision: str | None = None, preset: str | None = None
) -> Source:
    """Determine what `text` names; nothing is opened.

    Args:
        text: A file, `preset:NAME:FILE`, `embedded:NAME`, `preset:NAME`, or a Hub id `owner/name[:configuration]`; the
            latter two with `@revision` and `#split` behind if wanted.
        split: Overrides the split in `text` and the preset's own.
        revision: Overrides the revision in `text`.
        preset: Name of the preset to read the rows by, whatever `text` is.

    Raises:
        DataError: `text` names nothing.
    """
    source = _parse(text)
    if preset is not None:
        source = replace(source, preset=_preset(text, preset))
    return replace(source, split=split or source.split, revision=revision or source.revision)


def parse_columns(pairs: Sequence[str]) -> dict[str, str]:
    """Return the columns that options `--column OURS=THEIRS` of a command map.

    Raises:
        DataError: one is not of that form.
    """
    columns = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not ours or not equals or not theirs:
            raise DataError(f"--column {pair}: not of the form OURS=THEIRS; fix: --column problem=question")
        columns[ours] = theirs
    return columns


def for_command(error: Exception) -> str:
    """Return an error's line with the option of a command in place of the setting that maps a column."""
    line = " ".join(str(error).split())
    return re.sub(
        r"map it with columns\.(\S+) \(environment\.columns=.{0,200}?\)", r"map it with --column \1=NAME", line
    )


def has_preset(text: str) -> bool:
    """Return whether `text` names something that can be read; other names may be an environment's own."""
    try:
        return parse_source(text).preset is not None
    except DataError:
        return False


def evaluation_source(text: str) -> str:
    """Return `text` with the split to evaluate on, where its preset has one and `text` names none.

    Other names, and those that are not of a data set at all, stay as they are.
    """
    try:
        source = parse_source(text)
    except DataError:
        return text
    split = source.kind == "hub" and source.preset and source.preset.evaluation_split
    return f"{text}#{split}" if split and "#" not in text else text


def _parse(text: str) -> Source:
    if text.startswith("embedded:"):
        return Source(text, "embedded", text.removeprefix("embedded:"))
    if match := _PRESET.fullmatch(text):
        preset = _preset(text, match["preset"])
        split = match["split"] or preset.split
        return Source(text, "hub", preset.hub_id, preset.configuration, match["revision"], split, preset)
    if match := _PRESET_OF_FILE.fullmatch(text):
        return Source(text, "file", str(Path(match["path"]).expanduser()), preset=_preset(text, match["preset"]))
    path = Path(text).expanduser()
    if path.suffix.lower() in FILE_TYPES or path.exists():
        return Source(text, "file", str(path))
    if match := _HUB_ID.fullmatch(text):
        known = find_preset(match["name"])
        configuration = match["configuration"] or (known.configuration if known else None)
        split = match["split"] or (known.split if known else "train")
        return Source(text, "hub", match["name"], configuration, match["revision"], split, known)
    fix = f"name a file ({', '.join(FILE_TYPES)}), owner/name or preset:{nearest(text, PRESETS)[1:-1]}"
    raise DataError.at(text, "neither a file nor a Hub id", fix)


def _preset(text: str, name: str) -> Preset:
    known = ALIASES.get(name, name)
    if known not in PRESETS:
        raise DataError.at(text, f"there is no preset {name!r}", f"one of {', '.join(PRESETS)}")
    return PRESETS[known]


def parse_spec(data: str, keys: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return the name in front of `#`, and the numbers behind it by key.

    Args:
        data: Such as `train#seed=1,size=200`.
        keys: Those that may be set.

    Raises:
        ValueError: Another key, or a value that is no whole number.
    """
    name, _, settings = data.partition("#")
    values: dict[str, int] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in keys:
            raise ValueError(f"data: {data!r}: unknown key {key!r}; the nearest is {nearest(key, keys)}")
        if not value.isdecimal():
            raise ValueError(f"data: {data!r}: {key} must be a whole number, it is {value!r}")
        values[key] = int(value)
    return name, values
