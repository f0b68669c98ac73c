"""The pages on architecture and extending have every layer, stage, hook and service, in the code's order."""

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.r3_grpo.algorithm import R3GRPO

from .pages import DOCS, ROOT, text_of

PAGE, EXTEND = DOCS / "method/architecture.md", DOCS / "method/extend.md"
# Class methods tell --check what a step may cost; the page's prose has them.
HOOKS = [name for name, value in vars(Mechanism).items() if inspect.isfunction(value) and name != "__init__"]
PACKAGES = ("r3env", "algorithms", "benchmarks", "examples")
SOURCES = [path for root in PACKAGES for path in (ROOT / root).rglob("*.py")]


def box(module: str) -> str:
    """The picture's box that a module is in: a folder or file of `algorithms`, or another package."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "algorithms" else package


def imports_of(path: Path) -> set[tuple[str, str]]:
    own = box(".".join(path.relative_to(ROOT).with_suffix("").parts))
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = [each.name for part in nodes if isinstance(part, ast.Import) for each in part.names]
    found += [part.module for part in nodes if isinstance(part, ast.ImportFrom) and part.module and not part.level]
    ours = {box(name) for name in found if name.partition(".")[0] in PACKAGES} - {own, ""}
    return {(own, other) for other in ours}


def table(page, first_cell: str) -> list[list[str]]:
    """The rows of the table whose header begins with this cell."""
    (rows,) = re.findall(rf"^\| {re.escape(first_cell)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text_of(page), re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]


def names(cell: str) -> list[str]:
    """What stands in backticks, without arguments."""
    return re.findall(r"`(\w+)[^`]*`", cell)


def test_the_stages_are_those_of_a_training_step():
    tree = ast.parse(textwrap.dedent(inspect.getsource(GRPO.training_step)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 0]
    stages = [call.args[0].attr for call in calls if getattr(call.func, "attr", "") == "run_stage"]
    assert [names(row[0])[0] for row in table(PAGE, "stage")] == stages


def test_the_hooks_are_those_of_a_mechanism():
    for page in (PAGE, EXTEND):
        assert [name for row in table(page, "hook") for name in names(row[0])] == HOOKS


def test_r3_has_the_hooks_that_the_page_names_for_it():
    for hook, _, what in table(PAGE, "hook"):
        named = {kind for kind in R3GRPO.mechanisms if f"{kind.section}:" in what}
        assert named == {kind for kind in R3GRPO.mechanisms if names(hook)[0] in vars(kind)}, hook


def test_the_services_are_those_that_there_are():
    opened = {"opened_history", "opened_tokenizer"}
    fields = {field.name for field in dataclasses.fields(Services)} - opened
    public = {name for name in vars(Services) if not name.startswith("_")} - opened
    listed = {name for row in table(EXTEND, "service") for name in names(row[0])} - {"samples"}
    assert listed == fields | public


def test_every_folder_has_its_line():
    rows = re.findall(r"^\| `(\w+)` \|.*\(\.\./\.\./([\w/]+)/\w+\.\w+\)", text_of(PAGE), re.MULTILINE)
    for package in ("algorithms", "r3env"):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders <= {name for name, home in rows if home.startswith(f"{package}/{name}")}


def below(start: str, arrows: set[tuple[str, str]]) -> set[str]:
    """The boxes that arrows lead to from one, over others too."""
    found, waiting = set(), [start]
    while waiting:
        from_here = waiting.pop()
        new = {end for begin, end in arrows if begin == from_here} - found
        found |= new
        waiting += new
    return found


def test_the_arrows_are_the_imports_without_those_that_follow_from_others():
    graph = text_of(PAGE).partition("```mermaid")[2].partition("```")[0]
    arrows = set(re.findall(r"^\s+(\w+) --> (\w+)", graph, re.MULTILINE))
    imports = {pair for path in SOURCES for pair in imports_of(path)}
    assert arrows <= imports
    assert [(begin, end) for begin, end in imports if end not in below(begin, arrows)] == []
    assert [(begin, end) for begin, end in arrows if end in below(begin, arrows - {(begin, end)})] == []
