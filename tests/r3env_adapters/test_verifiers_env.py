"""`r3env.adapters.verifiers`, against the installed verifiers."""

import importlib.util

import pytest

if importlib.util.find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed (pip install 'verifiers>=0.4,<0.5')", allow_module_level=True)

from r3env.adapters.verifiers import VerifiersEnv
from r3env.agents.types import Completion, Policy
from r3env.registry import OptionError

MODULE = """
import itertools

import httpx
import verifiers.v1 as vf

class Sum(vf.TaskData):
    answer: str = ""

class SumTask(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace):
        return float(self.data.answer in trace.last_reply)

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    INFINITE = %s

    def load(self):
        for n in itertools.count() if self.INFINITE else range(4):
            yield SumTask(Sum(prompt=f"{n}+2", answer=str(n + 2), system_prompt="1+1=2"), self.config.task)

class AgainConfig(vf.HarnessConfig):
    temperature: float | None = None

class Again(vf.Harness[AgainConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"model": ctx.model}
        if self.config.temperature is not None:
            body["temperature"] = self.config.temperature
        async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None) as client:
            for _ in range(2):
                reply = await client.post("/chat/completions", json=body | {"messages": messages})
                reply.raise_for_status()
                messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "Again."}]
        return vf.ProgramResult(0, "", "")

__all__ = ["Sums", %s]
"""
POLICY = Policy(1.0, 1.0, 16)


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "vf_again.py").write_text(MODULE % (False, '"Again"'))
    (tmp_path / "vf_endless.py").write_text(MODULE % (True, '"Again"'))
    (tmp_path / "vf_bare.py").write_text(MODULE % (False, ""))
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name="vf_again", **options):
        made.append(VerifiersEnv(name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("last", "reward"), [("It is 3.", 1.0), ("It is 4.", 0.0)])
def test_an_episode_asks_the_policy_turn_by_turn_and_pays_the_task_s_reward(make, last, reward):
    env = make()
    observation, info = env.reset(options={"uid": "1", "policy": POLICY})
    assert observation == "1+2" and info["conversation"] == ({"role": "system", "content": "1+1=2"},)
    observation, paid, over, _, info = env.complete(Completion("first "))
    assert (observation, paid, over) == ("Again.", 0.0, False)
    assert info["next_turn"].follows == 0, "the same conversation, token for token"
    _, paid, over, _, info = env.complete(Completion(last))
    assert (paid, over, info["correct"]) == (reward, True, reward == 1.0)


def test_episodes_run_side_by_side(make):
    envs = [make() for _ in range(3)]
    for uid, env in enumerate(envs):
        assert env.reset(options={"uid": str(uid), "policy": POLICY})[0] == f"{uid}+2"
    for env in envs:
        env.complete(Completion("first"))
    assert [env.complete(Completion(str(uid + 2)))[1] for uid, env in enumerate(envs)] == [1.0] * 3


def test_data_is_a_range_of_tasks(make):
    env = make(data="2:")
    assert [(uid, env.query(uid).answer) for uid in env.uids] == [("2", "4"), ("3", "5")]
    assert make("vf_endless", data="5:7").uids == ["5", "6"]
    with pytest.raises(OptionError, match="data: 'vf_endless' has tasks without end; fix: environment.data=0:900"):
        _ = make("vf_endless").uids
    with pytest.raises(OptionError, match="data: 'train' is no range of tasks"):
        _ = make(data="train").uids


def test_what_the_run_does_not_give_is_the_episodes_error(make):
    env = make(options={"agent": {"harness": {"id": "vf_again", "temperature": 0.3}}})
    with pytest.raises(RuntimeError, match="temperature: the run samples at 1, not 0.3"):
        env.reset(options={"uid": "1", "policy": POLICY})


def test_a_harness_that_runs_what_the_policy_writes_is_refused_unless_its_place_is_named(make):
    shell = {"harness": {"id": "bash"}}
    with pytest.raises(OptionError, match="options: the harness 'bash' runs what the policy writes; fix: "):
        make("vf_bare", options={"agent": shell})
    make("vf_bare", options={"agent": shell | {"runtime": {"type": "subprocess"}}})
    assert make("vf_bare").uids == ["0", "1", "2", "3"], "without a harness of its own it chats"


def test_an_environment_that_cannot_be_loaded_is_one_line(make):
    with pytest.raises(OptionError, match="name: 'no_such_thing' cannot be loaded"):
        make("no_such_thing")
    with pytest.raises(OptionError, match="name: names no environment"):
        make("")
    with pytest.raises(OptionError, match=r"name: 'vf_again' has 2 agents, and an episode has one policy"):
        make(options={"id": "user-sim"})
