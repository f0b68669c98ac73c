"""Tools that mostly fail: which one and of what is said in one line, at once and then rarely."""

import pytest

from algorithms.evaluation.sampling import Sampler
from algorithms.rollout.failures import ToolWatch
from algorithms.rollout.types import Sampling
from r3env.envs.tools import ToolEnv
from tests.hand_made import answer
from tests.rollout.requests import requests_of

from .sample_server import SECRET
from .templates import ENDS, published
from .test_mcp_over_http import server  # noqa: F401  a fixture
from .test_tool_env import HERE, call
from .test_tool_episodes import PROBLEM, played

DEAD = "its server is gone, and http://127.0.0.1:8000/mcp could not be reached"


def step(*calls):
    """A step of one episode with these calls, each a tool and its error."""
    (request,) = requests_of(["q"])
    return [answer(request, prompt=[1], response=[2], correct=False, calls=calls)]


def failing(tool, failed, calls, error=DEAD):
    return [(tool, error)] * failed + [(tool, "")] * (calls - failed)


def test_the_tool_whose_calls_mostly_fail_is_named_though_most_calls_work():
    said = ToolWatch().observe(step(*failing("add", 0, 30), *failing("search", 5, 6)))
    assert said.startswith(f"tools: 5 of 6 calls of search failed (83%): {DEAD}. The policy reads the error")


def test_the_most_frequent_error_is_the_one_that_is_named():
    rare = [("search", f"ValueError: line {n} is odd") for n in range(2)]
    said = ToolWatch().observe(step(*rare, *failing("search", 3, 3)))
    assert f"5 of 5 calls of search failed (100%), 3 of them with: {DEAD}." in said


def test_names_that_no_tool_has_are_counted_together():
    said = ToolWatch().observe(step(*[(f"tool{n}", f"there is no tool 'tool{n}'; there are add") for n in range(5)]))
    assert "5 of 5 calls of all tools failed (100%): there is no tool 'tool0'; there are add" in said


@pytest.mark.parametrize("calls", [[], failing("add", 3, 3), failing("add", 5, 10)], ids=["none", "few", "half"])
def test_nothing_is_said_of_few_calls_or_where_half_of_them_work(calls):
    assert ToolWatch().observe(step(*calls)) is None


def test_it_is_said_at_once_and_then_rarely():
    watch = ToolWatch()
    told = [number for number in range(120) if watch.observe(step(*failing("add", 9, 10)))]
    assert told == [0, ToolWatch.AGAIN_AFTER, 2 * ToolWatch.AGAIN_AFTER]


def test_another_error_is_said_at_once():
    watch = ToolWatch()
    assert watch.observe(step(*failing("add", 9, 10)))
    assert "add did not return within 1 s" in watch.observe(
        step(*failing("add", 9, 10, "add did not return within 1 s"))
    )


@pytest.fixture
def environments(tmp_path):
    made = []

    def make(**options):
        (tmp_path / "problems.jsonl").write_text(PROBLEM)
        made.append(ToolEnv(str(tmp_path / "problems.jsonl"), max_turns=9, **options))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def watched(environment, responses):
    tokenizer = published("qwen2_5")
    _, rollout = played(environment, tokenizer, [text + ENDS["qwen2_5"] for text in [*responses, "\\boxed{12}"]])
    assert rollout.error is None and rollout.correct, "the episode goes on to its answer"
    return ToolWatch().observe([rollout])


def test_a_server_that_died_is_named_with_its_tool(environments, server):  # noqa: F811
    servers = {"sample": {"url": server.url, "headers": {"Authorization": SECRET}}}
    environment = environments(mcp_servers=servers)
    assert watched(environment, [call("add", a=1, b=2)] * 4) is None
    server.end()
    said = watched(environment, [call("add", a=1, b=2)] * 5)
    assert said.startswith("tools: 5 of 5 calls of add failed (100%)") and f"{server.url} could not be reached" in said


def test_a_function_that_raises_or_takes_too_long_is_named_with_its_error(environments):
    said = watched(environments(tools=f"{HERE}:fail"), [call("fail", text="nothing to see")] * 4)
    assert "4 of 4 calls of fail failed (100%): KeyError: 'nothing to see'." in said
    said = watched(environments(tools=f"{HERE}:wait", call_timeout_s=0.2), [call("wait", seconds=60)] * 4)
    assert "4 of 4 calls of wait failed (100%): wait did not return within 0.2 s." in said


def test_an_evaluation_warns_once_of_a_tool_that_mostly_fails(caplog):
    def rollout(requests):
        calls = failing("search", 1, 1)
        return [answer(one, prompt=[1], response=[2], correct=False, calls=calls) for one in requests]

    sampler = Sampler(rollout, 4, Sampling(), lambda draw: 0)
    for problem in ("a", "b"):
        sampler.sample([problem])
    (said,) = caplog.messages
    assert said.startswith(f"evaluation: tools: 4 of 4 calls of search failed (100%): {DEAD}. The policy reads the")
