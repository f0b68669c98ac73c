"""The page of the method names code that is there, and the defaults that hold."""

import ast
import re
from pathlib import Path

import yaml

from algorithms.r3_grpo.config import R3GRPOConfig

from .pages import DOCS, ROOT, inline_code, links, sections, text_of

PAGE = DOCS / "method/r3.md"
MECHANISMS = ("history", "replay", "reflection", "ranking")
SECTIONS = sections() | R3GRPOConfig.class_sections()  # of two defaults, R³'s
# What stands in backticks on the page and is neither a setting nor code: values of settings, a package of files.
VALUES = {"null", "std", "eps", "centered", "finished_wrong", "paper.yaml"}


def defined_in(path: Path) -> set[str]:
    """A file's functions and classes; methods by their own name and as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {*methods, *(f"{node.name}.{method}" for method in methods)}
    return names


def names_of_code() -> list[str]:
    """Functions, classes and methods that the page names: identifiers that are no setting."""
    identifiers = [code for code in inline_code(PAGE) if re.fullmatch(r"[A-Za-z]\w*(\.[a-z]\w*)?", code)]
    return [code for code in identifiers if code.partition(".")[0] not in SECTIONS and code not in VALUES]


def test_the_code_it_names_is_in_a_file_that_it_links_to():
    linked = [(PAGE.parent / target).resolve() for target in links(PAGE) if target.endswith(".py")]
    defined = set().union(*map(defined_in, linked))
    assert len(names_of_code()) > 20
    assert [name for name in names_of_code() if name not in defined] == []


def test_its_table_of_settings_is_the_code_s_and_the_file_s():
    paper = yaml.safe_load((ROOT / "configs" / "paper.yaml").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| ([^|]*?) ?\| ([^|]+?) \|$", text_of(PAGE), re.MULTILINE)
    of_mechanisms = {(section, key) for section in MECHANISMS for key in SECTIONS[section].model_fields}
    assert {name for name in of_mechanisms if name[1] != "enabled"} <= {(section, key) for section, key, *_ in rows}
    for section, key, in_file, default in rows:
        assert yaml.safe_load(default) == SECTIONS[section].model_fields[key].default, f"{section}.{key}"
        if in_file:
            assert yaml.safe_load(in_file) == paper[section][key], f"{section}.{key}"
        else:
            assert key not in paper.get(section, {}), f"{section}.{key}"
