"""No pattern of the library divides a run of characters in many ways: all are collected from its syntax trees."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import algorithms
import r3env
from r3env.constraints.requirements import forms
from r3env.data import options
from r3env.envs.choice import _patterns
from r3env.grading import conditions
from tests.faults.costly_patterns import costly

_FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
_FOLDERS = [Path(package.__path__[0]) for package in (r3env, algorithms)]
# Patterns that only texts of a fixed length reach: by module, that length's name there, and the patterns' names.
BOUNDED = {
    "r3env.grading.answer_forms": ("_LONGEST_LINE", {"_NUMBER"}),
    "r3env.grading.conditions": ("_LONGEST", {"_CONDITION"}),
    "r3env.grading.extraction": ("_LONGEST_GAP", {"_JOINT", "_LABEL_BEFORE", "_LOOSE"}),
    "r3env.grading.inequalities": ("_LONGEST", {"_TWO_SIDED"}),
    "r3env.grading.plain_numbers": ("_LONGEST", {"_GOES_ON"}),
    "r3env.grading.units": ("_LONGEST", {"_TRAILING", "_IN_PARENTHESES", "_PER", "_POWER"}),
}
# Patterns put together at run time, by module and function: what they look like, or why no text of others is read.
MADE = {
    ("r3env.constraints.reading", "forms"): [(forms("library"), {"search"})],
    ("r3env.control_tokens", "encode"): [(re.compile("(\ue000\\d+\ue000)"), {"split"})],
    ("r3env.control_tokens", "_spelling"): [(re.compile(r"<\|im_start\|>|<\|im_end\|>"), {"sub"})],
    ("r3env.data.options", "_stands"): [(re.compile(r"(?<!\w)two\ words(?!\w)"), {"search"})],
    ("r3env.data.options", "_in_order"): [(re.compile(options._MARK.format("A")), {"search"})],
    ("r3env.envs.choice", "_patterns"): [
        *((pattern, {"search"}) for pattern in (*_patterns("ABCD").sentences, _patterns("ABCD").another)),
        (_patterns("ABCD").joined, {"match"}),
        (_patterns("ABCD").label, {"fullmatch"}),
    ],
    ("r3env.grading.answer_forms", "text_after"): [(re.compile("\\#\\#\\#\\#"), {"finditer"})],
    ("r3env.grading.conditions", "_occurs"): [(re.compile(r"(?<![a-zA-Z\\])\\alpha"), {"search"})],
    ("r3env.grading.normalization", "encloses"): [(re.compile(r"(?<!\\)\{|(?<!\\)\}"), {"finditer"})],
    ("r3env.grading.conditions", "_kind"): [(re.compile(words), {"search"}) for words in conditions._KINDS.values()],
    ("algorithms.models.composite", "text_name"): [],  # names of tensors, by rules of transformers
    ("algorithms.train.curves", "_accuracies"): [(re.compile(r"eval/pass@(\d+)"), {"fullmatch"})],
}


def _found() -> Iterator[tuple[str, str, str, object, int, set[str]]]:
    """Module, function or name, source, pattern (None where it cannot be read), flags and uses of every pattern."""
    for folder in _FOLDERS:
        for file in sorted(folder.rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if re.search(r"^\s*import re$", text, re.MULTILINE):
                name = ".".join((folder.name, *file.relative_to(folder).with_suffix("").parts))
                yield from _in_module(name, ast.parse(text))


def _in_module(name: str, tree: ast.Module) -> Iterator[tuple[str, str, str, object, int, set[str]]]:
    module, uses, places = importlib.import_module(name), dict[str, set[str]](), dict[ast.AST, str]()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            places[node.value] = node.targets[0].id
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            places |= {inner: node.name for inner in ast.walk(node) if isinstance(inner, ast.Call)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FUNCTIONS:
            uses.setdefault(ast.unparse(node.func.value), set()).add(node.func.attr)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {f"re.{each}" for each in _FUNCTIONS}:
            continue
        given = [node.args[0], *(word.value for word in node.keywords if word.arg == "flags")]
        given += [one for one in node.args[1:] if isinstance(one, ast.Attribute) and ast.unparse(one).startswith("re.")]
        try:
            pattern, *flags = (eval(ast.unparse(each), vars(module)) for each in given)  # noqa: S307 - our own code
        except NameError:
            pattern, flags = None, []
        place, used = places.get(node, ""), {node.func.attr}
        used = uses.get(place, {"search"}) if used == {"compile"} else used
        yield name, place, ast.unparse(node.args[0]), pattern, int(flags[0]) if flags else 0, used


def _fault(pattern: object, flags: int, used: set[str]) -> str:
    if isinstance(pattern, re.Pattern):
        pattern, flags = pattern.pattern, pattern.flags
    anywhere = bool(used - {"match", "fullmatch"})
    return costly(str(pattern), flags, anywhere=anywhere, whole="fullmatch" in used)


def test_no_pattern_divides_a_run_in_many_ways() -> None:
    faults, made, excused = [], set(), set()
    for module, place, source, pattern, flags, used in _found():
        _, names = BOUNDED.get(module, ("", set()))
        if pattern is None and (module, place) in MADE:
            made.add((module, place))
        elif place in names or source in names:
            excused |= {(module, name) for name in (place, source) if name in names and _fault(pattern, flags, used)}
        elif pattern is None:
            faults.append(f"{module}: {source} is made at run time: put what it makes into MADE")
        elif fault := _fault(pattern, flags, used):
            faults.append(f"{module}: {source[:80]}: {fault}")
    faults += [
        f"{place}: {fault}" for place, each in MADE.items() for one in each if (fault := _fault(one[0], 0, one[1]))
    ]
    assert faults == []
    assert made == MADE.keys(), "a pattern that is no longer there"
    assert excused == {(module, name) for module, (_, names) in BOUNDED.items() for name in names}, "no longer needed"
    for module, (bound, _) in BOUNDED.items():
        assert getattr(importlib.import_module(module), bound) <= 2000


@pytest.mark.parametrize(
    ("pattern", "arguments"),
    [
        ("(a+)+", {}),
        ("a*a*b", {"anywhere": False}),
        (r"\s*\S*.*x", {}),
        ("a+b", {}),
        ("(a|a)*b", {}),
        (r"(?:\d{1,3})*x", {"anywhere": False}),
        (r".*?x.*?y", {"anywhere": False}),
        (r"\s*:?\s+x", {"anywhere": False}),
        ("(?i)a*A*b", {"anywhere": False}),
        ("a(?=.*x)", {}),
        (r"(?:a+,?)+", {"anywhere": False, "whole": True}),
        (r"(a+)\1*b", {"anywhere": False}),
        (r"[a-f]*(?:b|cd)?[e-h]+x", {"anywhere": False}),
    ],
)
def test_costly_patterns_are_found(pattern: str, arguments: dict[str, bool]) -> None:
    assert costly(pattern, **arguments)


@pytest.mark.parametrize(
    ("pattern", "arguments"),
    [
        ("a+", {}),
        ("(?<!a)a+b", {}),
        (r"(?:#\w+\s*)+$", {"anywhere": False}),
        (r"\s*x\s*y", {"anywhere": False}),
        (r"(?:\s*+:)?\s+x", {"anywhere": False}),
        ("(?>a*)a*b", {"anywhere": False}),
        (r"\b\w+,", {}),
        (r"^\s+x", {}),
        (r"(?:'[^']*'|\"[^\"]*\"|[\s,])*x", {"anywhere": False}),
        (r"(?<=\d)\s*[.,]", {}),
    ],
)
def test_linear_patterns_pass(pattern: str, arguments: dict[str, bool]) -> None:
    assert costly(pattern, **arguments) == ""
