"""What counts as a call of a tool, and what is wrong with one that is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3env.tools.calls import ToolCall, find_calls

ADD = ToolCall("add", {"a": 1, "b": 2})
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
LLAMA = '{"name": "add", "parameters": {"a": 1, "b": 2}}'

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
calls = st.lists(st.builds(ToolCall, names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=4)
# What a mark would be read from.
around = st.text(st.characters(codec="utf-8", exclude_characters="<{"), max_size=30)


def as_json(call: ToolCall, key: str) -> str:
    """A call in which no text spells a mark: `<` is escaped, as JSON allows."""
    return json.dumps({"name": call.name, key: call.arguments}).replace("<", "\\u003c")


@given(calls, around, st.sampled_from(["arguments", "parameters"]))
def test_calls_between_tags_are_found_whatever_stands_around_them(written, text, key):
    response = text.join(["", *(f"<tool_call>\n{as_json(call, key)}\n</tool_call>" for call in written), ""])
    assert find_calls(response) == written
    assert find_calls(f"<think>\nI might write {HERMES}.\n</think>\n\n{response}") == written


@given(calls, st.sampled_from(["; ", ";", "\n", " \n "]), st.sampled_from(["", "<|python_tag|>"]))
def test_bare_calls_are_found_where_nothing_else_is_said(written, between, tag):
    response = tag + between.join(as_json(call, "parameters") for call in written)
    assert find_calls(f" {response}\n") == written
    assert find_calls(f"Here it is: {response}") == []


@given(st.text() | st.text('<tool_cal>/{}":, \n1', max_size=80))
def test_any_text_is_read_and_none_has_more_calls_than_marks(text):
    found = find_calls(text)
    assert len(found) <= max(text.count("<tool_call>"), text.count("{"))
    for call in found:
        assert call.name or call.problem


@given(around)
def test_text_without_marks_or_objects_is_an_answer(text):
    assert find_calls(text) == []


@given(calls, st.data())
def test_a_call_that_is_cut_off_is_told_so_and_those_before_it_are_made(written, data):
    response = "".join(f"<tool_call>{as_json(call, 'arguments')}</tool_call>" for call in written)
    last = response.rindex("<tool_call>") + len("<tool_call>")
    found = find_calls(response[: data.draw(st.integers(last, len(response) - 1))])
    assert found[:-1] == written[:-1] and found[-1].problem


@pytest.mark.parametrize(
    "response",
    [
        "It is 3.",
        "",
        "\\boxed{3}",
        "{",
        '{"answer": 3}',
        '{"name": "add"}',
        f"{LLAMA} is what I would call.",
        f"[{LLAMA}]",
        f"<think>\nshall I {HERMES}",
        f"<think>\nshall I {HERMES}?\n</think>\n\nIt is 3.",
        f"<think>\n</think>\n\nI'd say {LLAMA}",
    ],
)
def test_an_answer_is_no_call(response):
    assert find_calls(response) == []


FURTHER = '{"type": "function", ' + LLAMA.removeprefix("{")


@pytest.mark.parametrize(
    "response",
    [
        HERMES,
        LLAMA,
        f"<|python_tag|>{LLAMA}",
        f"Let me see.\n{HERMES}",
        f"\n{LLAMA}\n",
        FURTHER,
        HERMES.replace("{", '{"id": 3, ', 1),
    ],
)
def test_the_styles_of_qwen_hermes_and_llama_are_read(response):
    assert find_calls(response) == [ADD]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "no JSON"),
        ("add(1, 2)", "no JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN is no JSON"),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "stands twice"),
        ('{"name": "add", "arguments": {}} and more', "no JSON"),
        ('["add"]', "one JSON object"),
        ('{"name": 3, "arguments": {}}', "one JSON object"),
        ('{"arguments": {}}', "one JSON object"),
        ('{"name": "", "arguments": {}}', "one JSON object"),
        ('{"name": "add"}', "one JSON object"),
        ('{"name": "add", "arguments": {}, "parameters": {}}', "one JSON object"),
        ('{"name": "add", "arguments": "{}"}', "no JSON object"),
        ('{"name": "add", "arguments": ' + "[" * 100_000 + "}", "nested too deeply"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 10_000 + "}}", "no JSON"),
        ('{"name": "add", "arguments": {"a": "\\ud83d"}}', "half a character"),
        ('{"name": "add", "arguments": {"a": 1e999}}', "too large"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(body, problem):
    (call,) = find_calls(f"<tool_call>{body}</tool_call>")
    assert problem in call.problem


def test_after_llamas_tag_comes_a_call():
    (call,) = find_calls('<|python_tag|>brave_search.call(query="x")')
    assert "one JSON object" in call.problem
