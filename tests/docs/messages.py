"""The messages that the code can print, read from its source; `…` stands for what is filled in."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .pages import ROOT

# Code with commands of its own.
FOLDERS = ("algorithms", "r3env", "benchmarks/ablation")
# How the lines begin that say something and end nothing.
NOTES = ("note: ", "once more, ")
LOGGED = {"warning", "error", "exception", "critical", "log"}
# Functions that return a warning for somebody else to log.
WATCHES = (
    "algorithms/grpo/monitors.py",
    "algorithms/r3_grpo/ranking.py",
    "algorithms/r3_grpo/ranking.py",
)


def source_files() -> list[Path]:
    """The files of the two packages and of the ablation."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def template(node: ast.expr) -> str | None:
    """A string expression with `…` in the place of its values; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdrg]|%\.\d+[gf]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join("…" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)
    return None


def warnings() -> set[str]:
    """Templates of what is logged above `info`, of what the watches return, and of what `warnings.warn` is given."""
    found: set[str] = set()
    for path in source_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in _calls(tree, LOGGED, of=("_logger", "logger", "logging")):
            messages = [text for text in map(template, call.args) if text]
            if not messages and not _hands_on_a_watch(call):
                raise AssertionError(f"{path}:{call.lineno}: a warning that this test cannot read")
            found.update(messages)
        assert not list(_calls(tree, {"warn"}, of=("warnings",))), f"{path}: warnings.warn is hushed; log it instead"
        if path.relative_to(ROOT).as_posix() in WATCHES:
            returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value]
            found.update(text for text in map(template, returned) if text)
    return found


def notes() -> set[str]:
    """Templates of texts that begin as a note does, wherever they stand: not all are made where they are printed."""
    return {text for path in source_files() for text in _texts(path) if text.startswith(NOTES)}


def settings_refused() -> set[str]:
    """The `section.key` that each ConfigError of the code begins with, where its text says so."""
    found = set()
    for call in _calls_of("ConfigError"):
        match = re.match(r"([a-z_]+\.[a-z_]+(\.[a-z_]+)?|--[a-z]+):", template(call.args[0]) or "")
        if match:
            found.add(match[1])
    return found


def _texts(path: Path) -> Iterator[str]:
    """Templates of all strings of a file; the parts of an f-string are not strings of their own."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    yield from filter(None, (template(node) for node in nodes if isinstance(node, ast.expr) and id(node) not in parts))


def _calls_of(name: str) -> Iterator[ast.Call]:
    """Every call of a name with arguments."""
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name and node.args:
                yield node


def errors_that_end_a_run() -> set[str]:
    """The names of exceptions that the training script turns into one line."""
    tree = ast.parse((ROOT / "algorithms/train/main.py").read_text(encoding="utf-8"))
    handlers = [node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    names = {name.id for handler in handlers if handler for name in ast.walk(handler) if isinstance(name, ast.Name)}
    return names - {"ConfigError", "CheckpointError", "KeyboardInterrupt", "Exception"}


def _calls(tree: ast.AST, names: set[str], *, of: tuple[str, ...]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            if isinstance(node.func.value, ast.Name) and node.func.value.id in of:
                yield node


def _hands_on_a_watch(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id == "warning"
