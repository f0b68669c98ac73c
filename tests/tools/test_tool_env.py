"""`r3env/Tools-v0`: calls are made, failures are results, an answer ends the episode."""

import json
import os
import threading

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

import r3env
from r3env.core import VerifiableEnv
from r3env.envs.mixture import MixtureEnv
from r3env.envs.tools import MOST_CHARACTERS, ToolEnv
from r3env.registry import OptionError

HERE = "tests.tools.sample_tools"
ALL = [f"{HERE}:{name}" for name in ("multiply", "greet", "wait", "compute", "leave", "fail", "speak", "count", "stop")]


def call(tool, /, **arguments):
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def problems(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"uid": "q", "problem": "What is 3 times 4?", "answer": "12"}\n')
    return str(file)


@pytest.fixture
def begun(problems):
    """Makes an environment in which an episode has begun."""

    def make(**options):
        environment = ToolEnv(problems, **{"tools": ALL, **options})
        environment.reset(seed=0)
        return environment

    return make


def results(environment, *calls):
    """What some calls of one response give, and how many of them failed."""
    _, reward, over, _, info = environment.step("".join(calls))
    assert (reward, over, info["verdict"]) == (0.0, False, "no_answer")
    assert info["counts"]["tool_calls"] == len(calls) == len(info["messages"])
    assert {name for name, _ in info["calls"]} <= environment._sources.keys()
    assert sum(error != "" for _, error in info["calls"]) <= info["counts"]["failed_tool_calls"]
    return [message["content"] for message in info["messages"]], info["counts"]["failed_tool_calls"]


def check_calls_at_once(environments):
    """Let a thread for each environment call `add` five times, all at once; every one gets its own sums."""
    sums = {}

    def work(number, environment):
        sums[number] = [results(environment, call("add", a=number, b=i))[0][0] for i in range(5)]

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(environments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: [str(number + i) for i in range(5)] for number in range(len(environments))}


def test_an_episode_of_a_call_and_an_answer(problems):
    environment = gymnasium.make(r3env.TOOLS_ID, data=problems, tools=f"{HERE}:multiply", instruction="Use tools.")
    text, info = environment.reset(seed=1)
    assert text == "What is 3 times 4?\n\nUse tools." and info["uid"] == "q"
    (schema,) = info["tools"]
    assert schema["function"]["name"] == "multiply"
    assert schema["function"]["description"] == "Multiply two whole numbers."
    assert schema["function"]["parameters"]["required"] == ["a", "b"]
    text, reward, over, cut, info = environment.step(f"I call.\n{call('multiply', a=3, b=4)}")
    assert (text, reward, over, cut) == ("12", 0.0, False, False)
    assert info["messages"] == [{"role": "tool", "name": "multiply", "content": "12"}]
    assert info["counts"] == {"tool_calls": 1, "failed_tool_calls": 0}
    text, reward, over, _, info = environment.step("\\boxed{12}")
    assert (text, reward, over, info["correct"], info["verdict"]) == ("", 1.0, True, True, "equal")
    assert info["counts"] == {"tool_calls": 0, "failed_tool_calls": 0}
    with pytest.raises(ResetNeeded):
        environment.step("\\boxed{12}")


def test_a_file_is_named_by_its_path(begun, tmp_path):
    environment = begun(tools=[os.path.relpath(__file__.replace("test_tool_env", "sample_tools")) + ":multiply"])
    assert results(environment, call("multiply", a=3, b=5)) == (["15"], 0)


def test_results_are_text_or_json(begun):
    environment = begun()
    assert results(environment, call("greet"), call("greet", name="Zoë", how="bye"), call("greet", name=None)) == (
        ['{"hello": "you"}', '{"bye": "Zoë"}', '{"hello": "you"}'],
        0,
    )
    assert results(environment, call("wait", seconds=0)) == (["done"], 0)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (call("divide", a=1), "Error: there is no tool 'divide'; there are multiply, greet,"),
        (call("multiply", a=1), "Error: multiply: the argument 'b' is missing; it takes a, b"),
        (call("multiply", a=1, b=2, c=3), "Error: multiply: there is no argument 'c'; it takes a, b"),
        (call("multiply", a="1", b=2), "Error: multiply: the argument 'a': '1' is not of type 'integer'"),
        (call("multiply", a=True, b=2), "Error: multiply: the argument 'a': True is not of type 'integer'"),
        (call("multiply", a=None, b=2), "Error: multiply: the argument 'a': None is not of type 'integer'"),
        (call("greet", how="hi"), "Error: greet: the argument 'how': 'hi' is not one of ['hello', 'bye']"),
        (call("leave"), "Error: leave ended its process"),
        (call("fail", text="x"), "Error: KeyError: 'x'"),
        (call("stop"), "Error: SystemExit: stopped"),
        ("<tool_call>multiply(3, 4)</tool_call>", "Error: the call is no JSON"),
        ('<tool_call>{"name": "multiply"', "Error: the call is not closed by </tool_call>"),
    ],
)
def test_what_fails_is_a_result_and_the_episode_goes_on(begun, written, text):
    environment = begun()
    (content,), failed = results(environment, written)
    assert content.startswith(text) and failed == 1 and "\n" not in content
    assert results(environment, call("multiply", a=3, b=4)) == (["12"], 0)


@pytest.mark.parametrize("written", [call("compute"), call("wait", seconds=3600)])
def test_a_tool_that_hangs_is_ended(begun, written):
    environment = begun(call_timeout_s=0.5)
    name = json.loads(written[11:-12])["name"]
    assert results(environment, written) == ([f"Error: {name} did not return within 0.5 s"], 1)
    environment.call_timeout_s = 60.0
    assert results(environment, call("multiply", a=3, b=4)) == (["12"], 0)


def test_calls_do_not_see_what_others_changed(begun):
    assert results(begun(), call("count"), call("count")) == (["1", "1"], 0)


def test_long_results_are_cut_and_odd_characters_are_replaced(begun):
    environment = begun(max_output_characters=6)
    assert results(environment, call("speak", length=1)) == (["?é😀\n"], 0)
    assert results(environment, call("speak", length=3)) == (["?é😀\n?é\n[6 more characters]"], 0)
    assert results(environment, call("fail", text="x" * 100)) == (["Error: KeyErr\n[106 more characters]"], 1)
    assert results(environment, call("x" * 10**6))[0][0].startswith("Error:\n[")
    (content,), failed = results(begun(max_output_characters=MOST_CHARACTERS), call("speak", length=MOST_CHARACTERS))
    assert content.endswith(f"\n[{3 * MOST_CHARACTERS} more characters]") and not failed


def test_calls_are_limited_per_response_and_per_episode(begun):
    environment = begun(max_calls_per_turn=2, max_calls=3)
    one = call("multiply", a=3, b=4)
    assert results(environment, one, one, one) == (
        ["12", "12", "Error: one response may have 2 calls; this one was not made"],
        1,
    )
    assert results(environment, one) == (["Error: all 3 calls are used up; answer now"], 1)
    environment.reset(seed=0)
    assert results(environment, one) == (["12"], 0), "the next episode has its own"


def test_calls_in_the_last_response_end_the_episode_without_an_answer(begun):
    environment = begun(max_turns=2)
    results(environment, call("multiply", a=3, b=4))
    text, reward, over, _, info = environment.step(f"\\boxed{{12}} {call('leave')}")
    assert (text, reward, over, info["verdict"], info["correct"]) == ("", 0.0, True, "no_answer", False)
    assert info["counts"] == {"tool_calls": 1, "failed_tool_calls": 1} and "messages" not in info
    assert info["calls"] == ()


def test_only_calls_that_were_made_are_blamed_on_their_tool(begun):
    environment = begun(max_calls_per_turn=2)
    one = call("multiply", a=3, b=4)
    *_, info = environment.step("".join((one, call("invented"), one)))
    assert info["counts"] == {"tool_calls": 3, "failed_tool_calls": 2}
    assert info["calls"] == (("multiply", ""),)


def test_a_reward_function_knows_how_many_calls_there_were(begun):
    environment = begun(reward=f"{HERE}:used_tools")
    results(environment, call("multiply", a=3, b=4), call("nothing"))
    _, reward, over, _, info = environment.step("It is 12.")
    assert over and info["correct"] and reward == pytest.approx(1.21)


def test_a_failed_attempt_is_followed_by_the_guidance(problems):
    environment = ToolEnv(problems, tools=ALL[:1], reflection_guidance="Again.")
    text, info = environment.reset(options={"uid": "q", "failed_attempt": "\\boxed{13}"})
    assert text == "Again." and info["tools"] and info["conversation"][1]["content"] == "\\boxed{13}"


def test_a_mixture_passes_tools_and_results_on(problems):
    parts = {
        "bare": {"id": "r3env/Math-v0", "options": {"data": problems}},
        "tools": {"id": "r3env/Tools-v0", "options": {"data": problems, "tools": f"{HERE}:multiply"}},
    }
    mixture = MixtureEnv(parts)
    assert [schema["function"]["name"] for schema in mixture.tools] == ["multiply"]
    _, info = mixture.reset(options={"uid": "tools/q"})
    assert info["tools"] == mixture.tools
    assert mixture.step(call("multiply", a=3, b=4))[4]["messages"][0]["content"] == "12"
    assert "tools" not in mixture.reset(options={"uid": "bare/q"})[1]
    mixture.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tools": None}, "tools: names no function; fix: environment.options.tools=[my_module:my_function]"),
        ({"tools": "multiply"}, "tools: 'multiply' is not of the form module:function"),
        ({"tools": "no_such_module:f"}, "tools: no_such_module:f: there is no module no_such_module"),
        ({"tools": f"{HERE}:multipy"}, f"tools: {HERE}:multipy: {HERE} has no multipy; the nearest is 'multiply'"),
        ({"tools": f"{HERE}:undescribed"}, f"tools: {HERE}:undescribed: does not describe its arguments"),
        ({"tools": f"{HERE}:untyped"}, "fix: write a docstring that says what it does"),
        ({"tools": f"{HERE}:positional"}, "takes arguments without a name; fix: name each"),
        ({"tools": [f"{HERE}:count", f"{HERE}:count"]}, "tools: two tools are called 'count'; fix: rename one"),
        ({"max_calls": 0}, "max_calls: must be a whole number of at least 1, it is 0"),
        ({"max_calls_per_turn": 1.5}, "max_calls_per_turn: must be a whole number"),
        ({"max_output_characters": MOST_CHARACTERS + 1}, "and at most 20000, it is 20001"),
        ({"call_timeout_s": 0}, "call_timeout_s: must be a positive number of seconds, it is 0"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(problems, options, text):
    with pytest.raises(OptionError) as error:
        ToolEnv(problems, **{"tools": ALL[:1], **options})
    assert text in str(error.value)


def test_it_is_a_verifiable_environment(begun):
    environment = begun()
    assert isinstance(environment, VerifiableEnv)
    assert environment.reference_response(environment.query("q")) == "\\boxed{12}"
