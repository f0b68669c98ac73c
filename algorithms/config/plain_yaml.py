"""YAML that costs no more than its text: what would unfold into millions of entries or characters is refused."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import yaml

MOST_NODES = 100_000
MOST_CHARACTERS = 10_000_000
MOST_NESTED = 100
MOST_DIGITS = 1_000
_NUMBER = re.compile(r"[-+.:_0-9a-fA-FxobeE]+")
# What YAML 1.1 takes for numbers of base 60 and 8.
_BASE_60 = re.compile(r"[-+]?(?:[1-9][0-9_]*(?::[0-5]?[0-9])+|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*)")
_BASE_8 = re.compile(r"[-+]?0[0-7_]+")
# Of another setting, by its dots and its path: `${.a.b}`, `${a[0][b]}`. Behind an odd number of backslashes it is text.
_INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*(\$\{\s*+(\.*+)([^\s.${}:\\][^\s${}:\\]*)\s*\})")
Path = tuple[str, ...]


def load_yaml(text: str) -> Any:
    """Return plain data.

    Raises:
        ValueError: it is no YAML, or too much of it (see `check_cost`); one line.
    """
    check_cost(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def check_cost(text: str) -> None:
    """Refuse YAML that costs more than its text, and numbers that are read as others than they look.

    It costs more where it is nested deep, has numbers without end, or aliases that unfold.

    Text that is no YAML passes: whoever reads it says why.

    Raises:
        ValueError: one line; of aliases if there are more than `MOST_NODES` entries, or one is within itself.
    """
    depth = 0
    with contextlib.suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTED:
                raise ValueError(f"its entries are nested more than {MOST_NESTED} deep; fix: write them flat")
            if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                _check_plain(event.value)
    if "*" not in text:
        return
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        count = 0 if root is None else _unfolded(root, {})
    except (yaml.YAMLError, RecursionError):
        return
    if count > MOST_NODES:
        raise ValueError(f"its aliases unfold into more than {MOST_NODES:,} entries; fix: write them out, or fewer")


def _check_plain(text: str) -> None:
    if text[:1] not in "+-.0123456789":
        return
    if len(text) > MOST_DIGITS and _NUMBER.fullmatch(text):
        raise ValueError(f"a number has more than {MOST_DIGITS:,} digits; fix: a smaller one, or quote it")
    base = 60 if _BASE_60.fullmatch(text) else 8 if _BASE_8.fullmatch(text) else 10
    if base != 10:
        fix = "write a number" if base == 60 else "leave out the leading 0"
        raise ValueError(f"{text} would be a number of base {base}; fix: {fix}, or quote it if it is a text")


def _unfolded(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Count the entries below a node, each alias as what it stands for."""
    if id(node) in counts:
        known = counts[id(node)]
        if known is None:
            raise ValueError("an alias stands within what it names; fix: write it out")
        return known
    counts[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    count = 1 + sum(_unfolded(child, counts) for child in children)
    counts[id(node)] = count
    return count


def interpolated(text: str, path: Path) -> list[tuple[str, Path]]:
    """List the other settings that a text names by `${…}`: as it is written, and the path to it.

    Args:
        text: of a setting.
        path: to that setting.
    """
    return [
        (match[1], (*(path[: len(path) - len(match[2])] if match[2] else ()), *_keys(match[3])))
        for match in _INTERPOLATION.finditer(text)
    ]


def _keys(path: str) -> list[str]:
    return [key for key in re.split(r"[.\[\]]", path) if key]


def check_values(data: Any) -> None:
    """Refuse what no setting holds: NUL characters, and interpolations that unfold.

    Raises:
        ValueError: one line; of resolved interpolations if they have more than `MOST_CHARACTERS`.
    """
    if _resolved_length(data, (), data, {}) > MOST_CHARACTERS:
        most = f"{MOST_CHARACTERS:,} characters"
        raise ValueError(f"its interpolations unfold into more than {most}; fix: write them out")


def _resolved_length(value: Any, path: Path, data: Any, lengths: dict[Path, int]) -> int:
    """Count the characters of a value; one that names itself, which nobody can resolve, counts once."""
    if path in lengths:
        return lengths[path]
    lengths[path] = 0
    length = 1
    if isinstance(value, Mapping):
        length += sum(_resolved_length(entry, (*path, str(key)), data, lengths) for key, entry in value.items())
    elif isinstance(value, list):
        length += sum(_resolved_length(entry, (*path, str(n)), data, lengths) for n, entry in enumerate(value))
    elif isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text holds a NUL character; fix: leave it out")
        length += len(value)
        for _, target in interpolated(value, path):
            length += _resolved_length(at_path(data, target), target, data, lengths)
    lengths[path] = length
    return length


def at_path(data: Any, path: Path) -> Any:
    """Return what is at a path; None for nothing."""
    for key in path:
        if isinstance(data, Mapping):
            data = next((entry for name, entry in data.items() if str(name) == key), None)
        elif isinstance(data, list) and key.isdecimal() and int(key) < len(data):
            data = data[int(key)]
        else:
            return None
    return data
