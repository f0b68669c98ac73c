"""Each Python snippet of the pages runs: here those that are quick and need no Ray, elsewhere the others."""

import ast
import asyncio
import inspect
import re
import threading
import types

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from ray import tune

from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import validate_start
from algorithms.preflight.trial import try_out
from algorithms.r3_grpo.config import R3GRPOConfig
from examples.http_judge import Judge, JudgeServer
from r3env.adapters.foreign import ForeignEnv, Reply
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.agent import AgentEnv
from r3env.envs.function import FunctionEnv

from .pages import PAGES, ROOT, fenced

# Page → the test that runs its snippets.
ELSEWHERE = {
    "docs/guides/coming-from-trl-or-verl.md": "docs/test_coming_from.py",
    "docs/guides/rllib.md": "training/test_rllib_script.py",
    "docs/guides/trackers.md": "trackers/test_starting.py",
    "docs/method/extend.md": "docs/test_extend.py",
    "docs/operate/run-control.md": "runs/test_stop_conditions.py",
    "docs/reference/api.md": "readme/test_readme.py",
    "docs/start/tutorial.md": "docs/test_tutorial.py",
}
# A server of another package's, which its users write.
COMPILED = {"docs/guides/other-environments.md"}
OF_AN_ENVIRONMENT = {
    **{kind.__name__: kind for kind in (ForeignEnv, Query, Reason, Reply, Verdict, VerifiableEnv)},
    "gymnasium": gymnasium,
}


@pytest.fixture(autouse=True)
def registered():
    """What snippets register is no environment of the tests after them."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def snippets(page):
    return fenced(ROOT / page, "python")


def run(code, page, **scope):
    exec(compile(code, page, "exec"), scope)
    return scope


def answers(env, *responses):
    """Play the first problem; return the rewards."""
    env.reset(options={"uid": env.unwrapped.uids[0]})
    return [env.step(response)[1] for response in responses]


def readme(page):
    (code,) = snippets(page)
    run(code, page)
    env = gymnasium.make("Doubling-v0", disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    assert answers(env, r"\boxed{2}") == [1.0]


def ablation(page, monkeypatch):
    """The search itself is that of another page."""
    tuned = []
    tuner = lambda kind, **given: types.SimpleNamespace(fit=lambda: tuned.append(given))  # noqa: E731
    monkeypatch.setattr(tune, "Tuner", tuner)
    (code,) = snippets(page)
    run(code, page)
    (given,) = tuned
    assert given["run_config"].stop == {"training_iteration": 20}
    validate_start(R3GRPOConfig.from_dict(given["param_space"].to_dict() | {"lr": 1e-5}))


@pytest.mark.parametrize("kind", [GRPOConfig, R3GRPOConfig])
def test_the_example_of_a_configuration_starts(kind):
    (example,) = re.findall(r"`(.+)\.build_algo\(\)`", kind.__doc__)
    validate_start(eval(example, {kind.__name__: kind}))


def agents(page, tmp_path):
    pytest.importorskip("openai")
    first, tools = snippets(page)
    (tmp_path / "my_agent.py").write_text(first)
    env = AgentEnv("embedded:train", agent=f"{tmp_path}/my_agent.py:solve")
    assert try_out(env, env.uids).startswith("reference answers: 1 of 1 correct")
    env.close()
    call = types.SimpleNamespace(id="1", function=types.SimpleNamespace(arguments='{"a": 6, "b": 7}'))
    message = types.SimpleNamespace(tool_calls=[call])
    create = lambda **_: types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])  # noqa: E731
    client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=create)))
    (multiply,) = snippets("docs/guides/tools.md")
    scope = run("import json\n" + multiply + tools, page, client=client, model="policy", messages=[], TOOLS=[])
    assert scope["messages"][-1] == {"role": "tool", "tool_call_id": "1", "content": "42"}


def tools(page):
    (code,) = snippets(page)
    assert run(code, page)["multiply"](6, 7) == 42


def own_environment(page):
    sort, calculate = snippets(page)
    scope = run(sort + calculate, page, **OF_AN_ENVIRONMENT)
    sorting, calculator = scope["SortDigits"](), scope["Calculator"]()
    for env in (sorting, calculator):
        check_env(env, skip_render_check=True)
    assert try_out(sorting, sorting.uids).startswith("reference answers: 1 of 1 correct")
    assert answers(calculator, "multiply 17 23", "answer 391") == [0.0, 1.0]


def reward_functions(page, tmp_path):
    function, judge = snippets(page)
    (tmp_path / "rewards.py").write_text(function)
    (tmp_path / "rows.jsonl").write_text('{"problem": "1 + 1", "answer": "2", "tolerance": 0.1}\n')
    env = FunctionEnv(str(tmp_path / "rows.jsonl"), reward=f"{tmp_path}/rewards.py:reward")
    assert answers(env, "it is 2.05") == [1.0]
    env.close()
    with JudgeServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever).start()
        judge = judge.replace("8009", str(server.server_address[1]))
        assert asyncio.run(two_scores(run(judge, page)["Judge"]())) == [1.0, 0.1]
        server.shutdown()


async def two_scores(judge):
    try:
        return await asyncio.gather(judge("1 + 1", "it is 2", "2"), judge("1 + 1", "it is 3", "2"))
    finally:
        await judge.session.close()


def environments(page):
    (code,) = snippets(page)
    scope = run(code.replace("preset:gsm8k", "embedded:train"), page)
    assert {"uid", "correct", "verdict"} <= scope["info"].keys()


def grading(page):
    """What its comments say is what comes, but for counts, to which other tests add."""
    (code,) = snippets(page)
    imports, *calls = re.split(r"^(?=grade|statistics)", code, flags=re.MULTILINE)
    scope = run(imports, page)
    *verdicts, counts = [(eval(call, scope), said.replace("\n#", "")) for call, said in map(parted, calls)]
    assert [repr(found) for found, _ in verdicts] == [said for _, said in verdicts]
    assert counts[0].keys() == ast.literal_eval(counts[1]).keys()


def parted(call):
    source, _, said = call.partition("\n# ")
    return source, said.strip()


HERE = {
    "README.md": readme,
    "docs/guides/ablation.md": ablation,
    "docs/guides/agents.md": agents,
    "docs/guides/own-environment.md": own_environment,
    "docs/guides/reward-functions.md": reward_functions,
    "docs/guides/tools.md": tools,
    "docs/reference/environments.md": environments,
    "docs/reference/grading.md": grading,
}


def test_each_snippet_runs_somewhere():
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if fenced(page, "python")}
    assert pages == HERE.keys() | ELSEWHERE.keys() | COMPILED
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (ROOT / "tests" / test).read_text()


@pytest.mark.parametrize("page", HERE)
def test_the_snippets_of_a_page_run(page, request):
    needed = {
        name: request.getfixturevalue(name) for name in inspect.signature(HERE[page]).parameters if name != "page"
    }
    HERE[page](page, **needed)


@pytest.mark.parametrize("page", sorted(COMPILED))
def test_what_needs_another_package_compiles(page):
    for code in snippets(page):
        compile(code, page, "exec")
