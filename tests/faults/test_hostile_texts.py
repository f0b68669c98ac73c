"""No text costs more than its length: what a policy writes, a row holds or an environment says is read in linear time.

What runs in a process that is killed at a deadline may take longer; it is tested where it is.
"""

import ast
import gc
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import algorithms
import r3env
from algorithms.evaluation import votes
from algorithms.methods.prefixes import plant_error
from algorithms.rollout import failures
from algorithms.train.trackers.conversations import conversation_markdown
from r3env.agents.tool_calls import split_calls
from r3env.constraints.kind import KINDS
from r3env.constraints.requirements import Requirements, forms
from r3env.core import Query
from r3env.data import choices, json_rows, other_forms, references, sources
from r3env.data.cells import is_conversation
from r3env.data.presets import PRESETS
from r3env.envs.choice import ChoiceEnv, _patterns, chosen_letter
from r3env.envs.reasoning_gym import extract_tagged_answer
from r3env.envs.reasoning_gym_scoring import may_be_scored
from r3env.grading import conditions, grade, grader, same_value
from r3env.grading.cost import too_costly
from r3env.grading.extraction import final_answer
from r3env.grading.fast_path import fast_equal
from r3env.grading.normalization import clean, comparable, strip_separators
from r3env.queries import holds_instruction, variants_of
from r3env.reasoning import answer_of, visible_text
from r3env.spelling import nearest
from r3env.tools.calls import find_calls
from tests.faults.costly_patterns import costly

SHORT, LONG = 1000, 16_000
_QUICK_S = 0.2  # of processor time for the long text; a quadratic reader needs seconds

# What the policy is asked for, what readers look for, and what opens something that is never closed.
BEGINNINGS = ("answer", "Answer: A", "\\boxed{", "\\boxed{1}, \\boxed{", "\\text{", "1", "option \n", "#### ", "A) ")
PIECES = (
    *"* { } \\ ( [ \" ' $ < # | ` _ ^ = , . - / % a A 1 \n \t".split(" "),
    *(" ", "\n ", "1 ", "1,", "1,234,", "1/2 ", "1 1/2 ", "-1", "1.", "\u0661", "\u00b2", "\u00e9", "\x1b[31m"),
    *(
        "\\boxed{",
        "\\boxed{1}",
        "\\boxed{1} and ",
        "\\frac{",
        "\\frac{1}{2}",
        "\\text{",
        "\\text{a} ",
        "\\quad ",
        "\\left(",
    ),
    *(
        "\\circ",
        "<<",
        "<<1=1>>",
        "<think>",
        "</think>",
        "<tool_call>",
        '{"name":"a","arguments":{}};',
        '{"a":',
        "<answer>",
    ),
    *(
        "A) ",
        "A or ",
        "or ",
        "and ",
        "maybe ",
        "#a ",
        "x = 1, ",
        "1 cm ",
        "1 million ",
        "a. ",
        "- ",
        "${",
        "://",
        "x\n",
    ),
)


def texts(length: int) -> dict[tuple[str, str], str]:
    pairs = [*(("", piece) for piece in PIECES), *itertools.product(BEGINNINGS, ("*", " ", "\n", "1", "{", "a", "1,"))]
    return {pair: f"{pair[0]}{pair[1] * (length // len(pair[1]) + 1)}"[: length - 1] + "!" for pair in pairs}


def _kinds(text: str) -> None:
    for kind in KINDS.values():
        kind.check(text, **{name: values[0] for name, values in kind.values.items()})


def _choices(text: str) -> None:
    chosen_letter(text, "ABCD", {"A": "one"})
    chosen_letter("Answer: A one", "ABCD", {"A": text})
    env = ChoiceEnv("embedded:train")
    env.prompt(Query("u", text, "A"))


def _references(text: str) -> None:
    for read in (references.reference_text, references.after_hashes, references.of_solution, references.is_absent):
        read(text)
    references.worked_steps(f"{text}\n#### 7")
    references.reference_text([text, [text, text]])


def _presets(text: str) -> None:
    for preset in PRESETS.values():
        if preset.answer:
            preset.answer(text)
    choices.aqua({"question": text, "options": [text]})


def _scorable(text: str) -> None:
    for task in ("countdown", "simple_integration", "n_queens"):
        may_be_scored(task, {"answer": "1"}, text)
        may_be_scored(task, {"answer": text}, text)


def _errors(text: str) -> None:
    failures.kind_of(text)
    failures.one_line(text)
    sources.for_command(ValueError(text))
    nearest(text, [text[::-1], "problem"])


def _flaws(text: str) -> None:
    for kind in ("digit", "step", "sign"):
        plant_error(text, kind, False, np.random.default_rng(0))


READERS: dict[str, Callable[[str], object]] = {
    "the final answer": final_answer,
    "the last number": lambda text: final_answer(text, "last_number"),
    "behind a mark": lambda text: final_answer(text, "after:####"),
    "a response": lambda text: grade(text, "42"),
    "a boxed answer": lambda text: grade(f"\\boxed{{{text}}}", "42"),
    "several boxes": lambda text: grade(f"\\boxed{{1}}, \\boxed{{{text}}}", "1, x"),
    "a response's last number": lambda text: grade(text, "42", form="last_number"),
    "a gold": lambda text: grade("\\boxed{1}", text),
    "a gold for several boxes": lambda text: grade("\\boxed{1}, \\boxed{2}", text),
    "equal values": lambda text: same_value(text, "42"),
    "one spelling": lambda text: comparable(clean(text)),
    "a spelling as it is": comparable,
    "separators": strip_separators,
    "the cost": too_costly,
    "votes": lambda text: votes.merge([text, f"{text}1"], lambda one, other: False),
    "options": _choices,
    "tagged answers": extract_tagged_answer,
    "what may be scored": _scorable,
    "reasoning": lambda text: (visible_text(text), answer_of(text)),
    "calls": lambda text: (find_calls(text), split_calls(text, 0)),
    "constraints": _kinds,
    "a topic": forms("library").search,
    "an instruction": lambda text: holds_instruction(Query("u", text, "1"), "put it in \\boxed{}"),
    "references": _references,
    "presets": _presets,
    "other forms": lambda text: (other_forms.other_forms(text), other_forms.is_prose(text)),
    "cells": is_conversation,
    "errors": _errors,
    "flaws": _flaws,
    "trackers": lambda text: conversation_markdown([{"role": "user", "content": text}]),
}


def _seconds(read: Callable[[str], object], text: str, times: int) -> float:
    """Return the least processor time."""
    found = []
    for _ in range(times):
        start = time.process_time()
        read(text)
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.parametrize("name", READERS)
def test_sixteen_times_the_text_takes_less_than_64_times_as_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "_work_out", lambda *_: grader.Outcome(False, False, 1.0))  # runs in killable processes
    read, short, slow = READERS[name], texts(SHORT), []
    gc.collect()
    for key, text in texts(LONG).items():
        if _seconds(read, text, 1) > _QUICK_S and (took := _seconds(read, text, 5)) > _QUICK_S:
            times = took / _seconds(read, short[key], 5)
            if times > 64:
                slow.append((key, f"{took:.2f} s, {times:.0f} times as long"))
                break
    assert slow == []


@pytest.mark.parametrize("name", ["fast_equal", "variants", "requirements", "names", "repeated keys"])
def test_nesting_and_repetition_are_refused_not_followed(name: str) -> None:
    if name == "fast_equal":
        assert fast_equal("(A) " * 400 + "5", "5") in (False, None)
    elif name == "variants":
        with pytest.raises(ValueError, match="variants of query 'u'"):
            variants_of(Query("u", "p", "a", info={"variants": "[" * 100_000}))
    elif name == "requirements":
        with pytest.raises(ValueError, match="no requirements"):
            Requirements.parse("[" * 100_000)
    elif name == "names":
        assert _seconds(lambda text: nearest(text, [text[::-1]] * 20), "ab" * 8000, 1) < 1
    else:
        pairs = [(str(number), 0) for number in range(30_000)]
        with pytest.raises(ValueError, match="'29999' occurs twice"):
            json_rows._to_members([*pairs, pairs[-1]])
        assert _seconds(lambda _: _repeats(pairs), "", 1) < 1


def _repeats(pairs: list[tuple[str, object]]) -> None:
    with pytest.raises(ValueError, match="twice"):
        json_rows._to_members([*pairs, pairs[-1]])


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
