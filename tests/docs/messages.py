"""The texts in the code, read from its source; `…` stands for what is filled in."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from .pages import ROOT

# Code with commands of its own.
FOLDERS = ("algorithms", "r3env", "benchmarks/ablation")
LOGGERS = {"_logger", "logger", "logging"}
LOGGED = {"warning", "error", "exception", "critical"}


@cache
def trees() -> list[ast.Module]:
    """The syntax trees of the two packages and of the ablation."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def nodes() -> Iterator[ast.AST]:
    """Everything in the code."""
    return (node for tree in trees() for node in ast.walk(tree))


def template(node: ast.AST) -> str | None:
    """A string expression with `…` in the place of its values; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdrg]|%\.\d+[gf]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join("…" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)
    return None


@cache
def texts() -> str:
    """All string literals, docstrings left out: no message of the page is found in one."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {ast.get_docstring(node, clean=False) for node in nodes() if isinstance(node, documented)}
    return "\n".join({text for node in nodes() if (text := template(node)) and text not in docstrings})


def fixed_parts(message: str) -> list[str]:
    """What of a quoted message stands in the code as it is: the words between its `…`."""
    return [part for part in (part.strip(" ;:,().") for part in message.split("…")) if part]


def warnings() -> set[str]:
    """Templates of what is logged above `info`, where the call has the text."""
    calls = [node for node in nodes() if isinstance(node, ast.Call) and node.args]
    logged = [call for call in calls if isinstance(call.func, ast.Attribute) and _is_logging(call.func)]
    return {text for call in logged if (text := template(call.args[0]))}


def settings_refused() -> set[str]:
    """The `section.key` that each ConfigError of the code begins with, where its text names one."""
    calls = (node for node in nodes() if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ConfigError")
    begins = (re.match(r"([a-z_]+\.[a-z_]+(\.[a-z_]+)?|--[a-z]+):", template(call.args[0]) or "") for call in calls)
    return {match[1] for match in begins if match}


def errors_that_end_a_run() -> set[str]:
    """The exceptions that the training command turns into one line with exit code 1."""
    classes = (node for node in nodes() if isinstance(node, ast.ClassDef))
    return {each.name for each in classes if "RunError" in {getattr(base, "id", "") for base in each.bases}}


def _is_logging(function: ast.Attribute) -> bool:
    return function.attr in LOGGED and getattr(function.value, "id", "") in LOGGERS
