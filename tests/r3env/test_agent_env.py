"""`r3env/Agent-v0` by itself: what its endpoint takes and refuses, and what becomes of an agent's result."""

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import r3env
from r3env.agents.branches import Branches
from r3env.agents.session import SessionClosed
from r3env.agents.types import ChatRequest, Completion, NextTurn, Policy
from r3env.core import Reason, Verdict
from r3env.envs.agent import AgentEnv
from r3env.inspect import main as inspect
from r3env.registry import OptionError, make_env
from tests.impatient_client import ask_and_leave

POLICY = Policy(temperature=0.7, top_p=1.0, max_tokens=16)
QUESTION = [{"role": "user", "content": "1+2"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}]
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "mine", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
AGENT = """
import json, urllib.request

def solve(query, base_url, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": query.problem}]}).encode()
    with urllib.request.urlopen(base_url + "/chat/completions", body) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

limit = 3
"""


def call(base_url, path="/chat/completions", data=None, **fields):
    """Send a request; returns status and body."""
    if data is None and "get" not in fields:
        data = json.dumps({"model": "policy", "messages": QUESTION} | fields).encode()
    try:
        with urllib.request.urlopen(base_url + path, data) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def served():
    """Run an agent; returns its environment after the first request, and what the agent saw."""
    environments = []

    def serve(agent, policy=POLICY, **arguments):
        environments.append(AgentEnv(agent=agent, **arguments))
        environments[-1].reset(options={"uid": environments[-1].uids[0], "policy": policy})
        return environments[-1]

    yield serve
    for environment in environments:
        environment.close()


def refused(served, **fields):
    """What the endpoint answers to a request of these fields."""
    seen = []

    def agent(query, base_url, model):
        seen.append(call(base_url, **fields))
        call(base_url)

    served(agent)
    ((status, body),) = seen
    return status, body["error"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.2}, "temperature: the run samples at 0.7, not 0.2; fix: leave it out, or set env_runners."),
        ({"temperature": float("nan")}, "temperature: the run samples at 0.7"),
        ({"temperature": "hot"}, "temperature: must be a number"),
        ({"top_p": 0.5}, "top_p: the run samples at 1, not 0.5"),
        (
            {"max_tokens": 17},
            "max_tokens: the run allows 16 tokens, not 17; fix: leave it out, or set env_runners.max_",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens: must be a whole number of at least 1"),
        ({"n": 2}, "n: one completion per request"),
        ({"stream": "yes"}, "stream: must be true or false"),
        ({"stop": ["\n"]}, "stop: not supported by this endpoint; fix: leave it out, and set env_runners.stop"),
        ({"tools": [{"type": "function"}]}, "tools[0]: must be of the form {"),
        ({"tools": {"type": "function"}}, "tools: must be a list of {"),
        ({"tools": TOOLS, "tool_choice": "required"}, 'tool_choice: only "auto" is served; fix: leave it out'),
        ({"tools": TOOLS, "tool_choice": "none"}, 'tool_choice: only "auto" is served; fix: leave it out'),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls: only true is served; fix: leave it out"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict: not"),
        ({"functions": [{"name": "f"}]}, "functions: not supported by this endpoint; fix: leave it out"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format: not supported"),
        ({"top_logprobs": 3}, "top_logprobs: not supported"),
        ({"messages": []}, "messages: must be a list"),
        ({"messages": [{"role": "assistant", "content": "3"}]}, "the last one must be the user's or a tool's"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "messages[0].tool_call_id: no call with the id '' stands"),
        ({"messages": [{"role": "function", "content": "3"}]}, "messages[0].role: must be one of"),
        ({"messages": [CALLED, *QUESTION]}, "fix: pass the answer's tool_calls on unchanged"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "messages[0].tool_calls: must be the"),
        ({"messages": [{"role": ["user"], "content": "3"}]}, "messages[0].role: must be one of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content: must be text"),
        ({"messages": [{"role": "user", "content": "3", "tool_calls": [1]}]}, "messages[0].tool_calls: not supported"),
        ({"temperature": 10**400}, "temperature: the run samples at 0.7, not 1000"),
        ({"temperature": [[]]}, "temperature: must be a number, it is [[]]"),
        ({"max_tokens": 10**400}, "max_tokens: the run allows 16 tokens, not 1000"),
        ({"max_tokens": 2.5}, "max_tokens: must be a whole number of at least 1, it is 2.5"),
        (
            {"data": b'{"messages": [{"role": "user", "content": "1"}], "max_tokens": 1e400}'},
            "max_tokens: must be a whole number of at least 1, it is inf",
        ),
        ({"data": b'{"max_tokens": ' + b"9" * 5000 + b"}"}, "the body is not JSON in UTF-8"),
        ({"messages": {"role": "user"}}, "messages: must be a list"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "the body has an unpaired surrogate"),
        ({"data": b'{"messages": ' + b"[" * 100_000}, "the body is nested too deeply"),
        ({"data": b'{"seed": ' + b'{"a":' * 100_000}, "the body is nested too deeply"),
        ({"data": b'{"user": "\xff"}'}, "the body is not JSON in UTF-8"),
        ({"data": '{"user": "a"}'.encode("utf-16")}, "the body is not JSON in UTF-8"),
        ({"data": b"{"}, "the body is not JSON"),
        ({"data": b"[]"}, "the body is not a JSON object"),
    ],
)
def test_what_the_run_does_not_give_is_refused_in_one_line(served, fields, message):
    status, error = refused(served, **fields)
    assert status == 400 and error["type"] == "invalid_request_error"
    assert message in error["message"] and "\n" not in error["message"]


def test_an_unknown_model_or_path_is_not_found(served):
    assert refused(served, model="gpt-5")[0] == 404
    assert refused(served, path="/completions")[0] == 404


def test_what_means_nothing_is_taken(served):
    neutral = {"temperature": 0.7, "top_p": 1, "max_tokens": 16, "n": 1, "stream": False, "stop": None, "tools": []}
    neutral |= {"tool_choice": "none", "parallel_tool_calls": False, "stream_options": None}
    neutral |= {"seed": 3, "user": "me", "presence_penalty": 0.0, "response_format": {"type": "text"}}
    parts = [{"type": "text", "text": "1"}, {"type": "text", "text": "+2"}]
    messages = [
        {"role": "developer", "content": "S", "tool_calls": None, "refusal": ""},
        {"role": "user", "content": parts, "name": "me"},
    ]
    env = AgentEnv(agent=lambda query, base_url, model: call(base_url, messages=messages, **neutral) and True)
    observation, info = env.reset(options={"policy": POLICY})
    assert observation == "1+2" and info["conversation"] == ({"role": "system", "content": "S"},)
    assert info["next_turn"].max_tokens is None, "the run's own limit"
    assert env.step("3")[1:3] == (1.0, True)


def test_the_answer_has_what_was_asked_for_and_the_models_are_listed(served):
    seen = []

    def agent(query, base_url, model):
        seen.append(call(base_url, "/models", get=True))
        seen.append(call(base_url, f"/models/{model}", get=True))
        seen.append(call(base_url, logprobs=True, return_token_ids=True, max_tokens=3))
        seen.append(call(base_url))

    env = served(agent)
    env.complete(Completion("ab", "length", [5, 6, 7], [8, 9], [-0.5, -1.0], ["a", "b"]))
    (_, models), (_, model), (status, rich) = seen
    assert [each["id"] for each in models["data"]] == ["policy"] == [model["id"]]
    choice = rich["choices"][0]
    assert status == 200 and choice["message"] == {"role": "assistant", "content": "ab"}
    assert (
        choice["finish_reason"] == "length" and choice["token_ids"] == [8, 9] and rich["prompt_token_ids"] == [5, 6, 7]
    )
    assert [(each["token"], each["logprob"]) for each in choice["logprobs"]["content"]] == [("a", -0.5), ("b", -1.0)]
    assert rich["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    with pytest.raises(TypeError, match="the agent returned None; fix: return the answer as text"):
        env.complete(Completion("c"))
    plain = seen[3][1]
    assert plain["choices"][0]["logprobs"] is None and "prompt_token_ids" not in plain


@pytest.mark.parametrize(
    ("result", "reward", "correct"),
    [
        ("It is \\boxed{ANSWER}", 1.0, True),
        ("ANSWER", 1.0, True),
        ("<think>Is it \\boxed{ANSWER + 1}?</think>\n\nANSWER", 1.0, True),
        ("<think>It is ANSWER.", 0.0, False),
        ("no idea", 0.0, False),
        ("", 0.0, False),
        (True, 1.0, True),
        (0.5, 0.5, False),
        (2, 2.0, True),
        (0.9999999, 0.9999999, True),
        (Verdict(True, Reason.EQUAL, 0.25), 0.25, True),
    ],
)
def test_what_an_agent_returns_is_its_answer_or_the_reward(served, result, reward, correct):
    def agent(query, base_url, model):
        call(base_url)
        return result.replace("ANSWER", query.answer) if isinstance(result, str) else result

    _, paid, terminated, truncated, info = served(agent).step("anything")
    assert (paid, terminated, truncated, info["correct"]) == (reward, True, False, correct)


def test_an_agent_may_be_a_coroutine_function(served):
    async def agent(query, base_url, model):
        return (await asyncio.to_thread(call, base_url))[0] == 200

    assert served(agent).step("3")[1] == 1.0


def test_a_connection_that_an_agent_left_open_ends_with_its_episode(served):
    kept = []

    async def agent(query, base_url, model):
        host, port = base_url.removeprefix("http://").partition("/")[0].split(":")
        kept.extend([*await asyncio.open_connection(host, int(port)), threading.current_thread()])
        return (await asyncio.to_thread(call, base_url))[0] == 200

    assert served(agent).step("3")[1] == 1.0
    _, writer, thread = kept
    thread.join()
    assert writer.is_closing() and writer.get_extra_info("socket").fileno() == -1


CLIENTS = """
import gc
from openai import AsyncOpenAI
from r3env.envs.agent import AgentEnv

shared = AsyncOpenAI(base_url="http://localhost", api_key="none", max_retries=0)

async def ask(client, query, model):
    messages = [{"role": "user", "content": query.problem}]
    return (await client.chat.completions.create(model=model, messages=messages)).choices[0].message.content

async def own(query, base_url, model):
    return await ask(AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0), query, model)

async def common(query, base_url, model):
    return await ask(shared.with_options(base_url=base_url), query, model)

for agent in (own, own, common, common):
    env = AgentEnv("embedded:train", agent=agent)
    env.reset(options={"uid": env.uids[0]})
    print(env.step(env.reference_response(env.query(env.uids[0])))[1])
    env.close()
    gc.collect()
"""


def test_clients_that_an_agent_does_not_close_cause_no_error_and_no_warning():
    pytest.importorskip("openai")
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", CLIENTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(r3env.__file__).parents[1])
    assert done.stdout.split() == ["1.0"] * 4
    assert not [word for word in ("socket", "transport", "loop is closed") if word in done.stderr], done.stderr


def test_an_agent_by_name_works_in_the_inspector(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(AGENT)
    name = f"{tmp_path}/mine.py:solve"
    assert inspect(["--env", r3env.AGENT_ID, "--option", f"agent={name}", "--n", "1", "--gold"]) == 0
    assert "equal correct=True reward=1 (the end)" in capsys.readouterr().out
    check_env(gymnasium.make(r3env.AGENT_ID, agent=name).unwrapped)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "agent: names no function; fix: environment.options.agent=my_module:my_function"),
        ("solve", "is not of the form module:function"),
        ("no_such_module:solve", "there is no module no_such_module"),
        ("FILE:sovle", "the nearest is 'solve'"),
        ("FILE:limit", "is a int, not a function"),
    ],
)
def test_an_agent_that_cannot_be_found_is_one_line(tmp_path, name, message):
    (tmp_path / "mine.py").write_text(AGENT)
    name = name and name.replace("FILE", f"{tmp_path}/mine.py")
    with pytest.raises(OptionError) as raised:
        AgentEnv(agent=name)
    assert message in str(raised.value)


def test_an_episode_that_was_given_up_answers_nothing_and_wakes_whoever_waits(served):
    asked, statuses = threading.Event(), []

    def agent(query, base_url, model):
        call(base_url)
        asked.wait()
        statuses.append(call(base_url)[0])

    env = served(agent)
    waiting = threading.Thread(target=lambda: pytest.raises(SessionClosed, env.step, "3"))
    waiting.start()
    env.abandon()
    waiting.join(60)
    assert not waiting.is_alive()
    asked.set()
    while not statuses:
        threading.Event().wait(0.01)
    assert statuses == [410]


def test_a_reset_ends_the_agent_that_runs(served):
    statuses = []

    def agent(query, base_url, model):
        statuses.append(call(base_url)[0])
        return True

    env = served(agent)
    env.reset(options={"uid": env.uids[1], "policy": POLICY})
    while not statuses:
        threading.Event().wait(0.01)
    assert statuses == [410]
    assert env.step("3")[1] == 1.0
    with pytest.raises(ResetNeeded):
        env.step("3")


def test_one_episodes_address_is_no_others(served):
    urls, done = [], threading.Event()

    def agent(query, base_url, model):
        urls.append(base_url)
        call(base_url)
        done.wait()

    served(agent), served(agent)
    assert len(set(urls)) == 2 and all(url.startswith("http://127.0.0.1:") for url in urls)
    address, key, _ = urls[0].rsplit("/", 2)
    assert len(key) > 20 and call(f"{address}/{key[:-1]}x/v1")[0] == 410
    done.set()


CONNECTIONS = """
import http.client, resource
from r3env.agents.server import endpoint
from r3env.agents.session import Session
from r3env.agents.types import Policy

resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
address, path = endpoint().open(Session(Policy())).removeprefix("http://").split("/", 1)
connections = [http.client.HTTPConnection(address) for _ in range(100)]
for connection in connections:
    connection.request("GET", f"/{path}/models")
print({connection.getresponse().status for connection in connections})
"""


def test_as_many_agents_may_be_connected_as_the_process_may_have_files():
    finished = subprocess.run([sys.executable, "-c", CONNECTIONS], capture_output=True, text=True, timeout=300)
    assert finished.stdout == "{200}\n", finished.stderr[-2000:]


def test_agents_may_be_a_part_of_a_mixture():
    parts = {
        "agents": {"id": r3env.AGENT_ID, "options": {"agent": lambda query, base_url, model: call(base_url)[0] == 200}},
        "plain": {"id": r3env.MATH_ID, "options": {"instruction": ""}},
    }
    env = make_env(r3env.MIXTURE_ID, {"environments": parts})
    assert env.takes_completions
    uid = next(uid for uid in env.uids if uid.startswith("agents/"))
    _, info = env.reset(options={"uid": uid, "policy": POLICY})
    assert isinstance(info["next_turn"], NextTurn)
    assert env.complete(Completion("3"))[1] == 1.0
    plain = next(uid for uid in env.uids if uid.startswith("plain/"))
    assert "next_turn" not in env.reset(options={"uid": plain, "policy": POLICY})[1]
    assert env.step("no")[1] == 0.0
    env.close()


# -- Which turn a conversation continues -------------------------------------------------------------------------------


def say(branches, *texts):
    """Place a conversation of these texts, the user's first, and answer it with its number of turns."""
    messages = tuple({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts))
    turn = branches.place(ChatRequest(messages))
    branches.answered(turn, "ok")
    return turn.follows, len(turn.new)


def test_a_conversation_continues_the_longest_that_it_begins_with_word_for_word():
    branches = Branches()
    assert say(branches, "a") == (None, 1)
    assert say(branches, "a", "ok", "b") == (0, 1)
    assert say(branches, "a", "ok", "b", "ok", "c") == (1, 1)
    assert say(branches, "a", "ok", "d") == (0, 1), "another turn behind the first"
    assert say(branches, "a", "ok", "d", "ok", "e") == (3, 1)
    assert say(branches, "a", "ok ", "b") == (None, 3), "an edited answer"
    assert say(branches, "a") == (None, 1), "the first question again"
    assert say(branches, "a", "ok", "f") == (6, 1), "the newest of equal ones"
    assert say(branches, "x", "ok", "b") == (None, 3), "an edited question"


def test_an_episode_whose_client_gave_up_is_over_and_no_other_request_waits_on(served):
    seen, over = [], threading.Event()

    def agent(query, base_url, model):
        ask_and_leave(base_url, model, QUESTION, asked)
        closed.set()
        seen.append(call(base_url, messages=[{"role": "user", "content": "2+2"}]))
        over.set()

    asked, closed = threading.Event(), threading.Event()
    environment = served(agent)
    asked.set()
    assert closed.wait(60)
    with pytest.raises(RuntimeError, match="gave a request up before its answer came"):
        environment.complete(Completion("3"))
    assert over.wait(20)
    assert [(status, body["error"]["code"]) for status, body in seen] == [(410, "episode_over")]
    with pytest.raises(ResetNeeded):
        environment.complete(Completion("3"))
