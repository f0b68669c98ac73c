"""The layers, checked apart from import-linter: every import statement counts, wherever it stands in a file.

A unit is a package that has a layer of its own: `r3env`, `algorithms.config`, `benchmarks`, …
"""

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("r3env", "algorithms", "benchmarks", "examples")


class Import(NamedTuple):
    importer: str
    imported: str
    where: str


def unit(module: str) -> str:
    """`algorithms.grpo.types` is of `algorithms.grpo`, `r3env.data.hub` of `r3env`."""
    return ".".join(module.split(".")[: 2 if module.startswith("algorithms.") else 1])


def modules(root: Path) -> dict[str, Path]:
    files = (file for top in TOP for file in (root / top).rglob("*.py"))
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(node: ast.AST, package: str) -> list[str]:
    """What a statement may import; of `from a import b`, `a` and `a.b`: b may be a module."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        return [base, *(f"{base}.{name.name}" for name in node.names)]
    return []


def imports_between_units(root: Path) -> list[Import]:
    """Every import of one unit by another: of the file, in functions, in branches and under TYPE_CHECKING."""
    known, found = modules(root), []
    for module, file in known.items():
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name in imported(node, package):
                if name in known and name != "algorithms" and unit(name) != unit(module):
                    where = f"{file.relative_to(root)}:{getattr(node, 'lineno', 0)} imports {name}"
                    found.append(Import(unit(module), unit(name), where))
    return found


def layers() -> list[set[str]]:
    """From the top down, as the contracts of pyproject.toml have them; units of one layer are strangers."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    whole, inner = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    place = whole.index("algorithms")
    packages = [" | ".join(f"algorithms.{name}" for name in layer.split(" | ")) for layer in inner]
    return [set(layer.split(" | ")) for layer in [*whole[:place], *packages, *whole[place + 1 :]]]


def circle(imports: list[Import]) -> list[str]:
    """The units of a circle, none if there is none."""
    graph: dict[str, set[str]] = {}
    for each in imports:
        graph.setdefault(each.importer, set()).add(each.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def wrong_ways(imports: list[Import], order: list[set[str]]) -> list[str]:
    """The imports that do not run down."""
    height = {name: -number for number, layer in enumerate(order) for name in layer}
    height["algorithms"] = -len(order)  # its __init__.py is run before any of its packages
    return [each.where for each in imports if height[each.imported] >= height[each.importer]]


def test_no_packages_import_each_other_in_a_circle():
    assert circle(imports_between_units(ROOT)) == []


def test_every_import_runs_down():
    assert wrong_ways(imports_between_units(ROOT), layers()) == []


def test_every_package_has_one_layer():
    placed = [name for layer in layers() for name in layer]
    assert sorted(placed) == sorted({unit(module) for module in modules(ROOT)} - {"algorithms"})


@pytest.mark.parametrize(
    "upward",
    [
        "import algorithms.grpo.types",
        "from algorithms.grpo import types",
        "from algorithms import grpo",
        "from ..grpo import types",
        "def load():\n    from algorithms.grpo.types import Sample",
        "if TYPE_CHECKING:\n    from algorithms.grpo.types import Sample",
        "try:\n    import algorithms.grpo\nexcept ImportError:\n    pass",
    ],
)
def test_an_upward_import_is_found_wherever_it_stands(upward, tmp_path):
    texts = {"grpo/types.py": "import algorithms.config.schema", "config/schema.py": upward, "grpo/__init__.py": ""}
    for name, text in texts.items():
        (tmp_path / "algorithms" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "algorithms" / name).write_text(text)
    imports = imports_between_units(tmp_path)
    assert {*circle(imports)} == {"algorithms.config", "algorithms.grpo"}
    found = {where.split(" ")[0].partition(":")[0] for where in wrong_ways(imports, layers())}
    assert found == {"algorithms/config/schema.py"}
