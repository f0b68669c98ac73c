"""No text costs more than its length: what a policy writes, a row holds or an environment says is read in linear time.

What runs in a process that is killed at a deadline may take longer; it is tested where it is.
"""

import gc
import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

from algorithms.evaluation import votes
from algorithms.methods.prefixes import plant_error
from algorithms.rollout import failures
from algorithms.train.trackers.conversations import conversation_markdown
from r3env.agents.tool_calls import split_calls
from r3env.constraints.kind import KINDS
from r3env.constraints.requirements import Requirements, forms
from r3env.core import Query
from r3env.data import json_rows, other_forms, questions, references, sources
from r3env.data.cells import is_conversation
from r3env.data.presets import PRESETS
from r3env.envs.choice import ChoiceEnv, chosen_letter
from r3env.envs.reasoning_gym import extract_tagged_answer
from r3env.envs.reasoning_gym_scoring import may_be_scored
from r3env.grading import grade, grader, same_value
from r3env.grading.cost import too_costly
from r3env.grading.extraction import final_answer
from r3env.grading.fast_path import fast_equal
from r3env.grading.normalization import clean, comparable, strip_separators
from r3env.queries import holds_instruction, variants_of
from r3env.reasoning import answer_of, visible_text
from r3env.spelling import nearest
from r3env.tools.calls import find_calls

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
    pairs = [*(("", piece) for piece in PIECES), *itertools.product(BEGINNINGS, (" ", "1", "{"))]
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
    questions.aqua({"question": text, "options": [text, text], "correct": "A"})


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
        plant_error(text, kind, np.random.default_rng(0))


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


def test_small_elements_behind_a_large_one_are_read_in_linear_time(tmp_path):
    def seconds(length: int) -> float:
        file = tmp_path / f"{length}.json"
        small = '{"a":1},' * (length // 8)
        file.write_text(f'[{{"a":"{"x" * length}"}},{small}{{"a":1}}]')
        return _seconds(lambda _: sum(1 for _ in json_rows.read_json("data", file)), "", 2)

    short, long = seconds(150_000), seconds(1_200_000)
    assert long < _QUICK_S or long < 20 * short, f"{long:.2f} s, {long / short:.0f} times as long"


def _repeats(pairs: list[tuple[str, object]]) -> None:
    with pytest.raises(ValueError, match="twice"):
        json_rows._to_members([*pairs, pairs[-1]])
