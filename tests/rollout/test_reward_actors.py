"""Reward functions in actors: what stays in them, what becomes of one that dies or hangs, and training with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.environments import validate_environment
from algorithms.rollout.environment_actors import EnvironmentFailed, stand_ins
from algorithms.rollout.reward_actors import RewardActors, RewardActorsDidNotStart, judge_of
from algorithms.rollout.types import Split
from r3env.core import Reason, Verdict
from r3env.envs.function import FunctionEnv, judging_with
from tests.own_ray import own_ray

FUNCTIONS = """
import asyncio, os, re, time
from pathlib import Path

made = []

class Pool:
    def __init__(self):
        made.append(os.getpid())
    async def __call__(self, response):
        return float(made == [os.getpid()])  # in a fork it is another process

class Together:
    # answers nobody before all eight have asked
    def __init__(self):
        self.asked, self.all_there = 0, asyncio.Event()
    async def __call__(self, response):
        self.asked += 1
        if self.asked == 8:
            self.all_there.set()
        await asyncio.wait_for(self.all_there.wait(), 120)
        return 1.0

def ends_its_process_once(response):
    mark = Path(__file__).with_suffix(".ended")
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return 0.5

def hangs(response):
    if response == "long":
        time.sleep(3600)
    return 0.5

def keeps_the_lock(response):
    if response == "long":
        re.match("(a*)*b", "a" * 40)
    return 0.5
"""


@pytest.fixture(scope="module", autouse=True)
def ray_session() -> Iterator[None]:
    with own_ray(4):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "rows.jsonl").write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    return folder


@pytest.fixture(scope="module")
def config() -> Iterator[GRPOConfig]:
    config = GRPOConfig()
    config.env_runners(reward_actor={"replicas": 1, "num_cpus": 0.1, "concurrency": 2, "retries": 1})
    actors = RewardActors(config)
    yield config
    actors.close()


@pytest.fixture
def judge(folder: Path, config: GRPOConfig) -> Any:
    def judge(function: str, response: str = "r", limit_s: float = 30.0) -> Verdict:
        with judging_with(judge_of(config.measured.reward_actors)):
            reward = f"{folder}/functions.py:{function}"
            env = FunctionEnv(str(folder / "rows.jsonl"), reward=reward, grading_timeout_s=limit_s)
        return env.verify(env.query(env.uids[0]), response)

    return judge


def test_what_a_class_holds_stays_for_all_environments_of_the_processes(judge: Any) -> None:
    assert [judge("Pool").score for _ in range(3)] == [1.0] * 3


def test_an_actor_that_dies_is_restarted_and_its_calls_are_repeated(judge: Any) -> None:
    assert judge("ends_its_process_once").score == 0.5


def test_an_actor_whose_threads_all_hang_is_replaced(judge: Any) -> None:
    for _ in range(2):
        assert judge("hangs", "long", 0.3).reason is Reason.TIMEOUT
    assert judge("hangs").score == 0.5


def test_an_actor_that_never_answers_ends_by_the_time_limit(judge: Any) -> None:
    verdict = judge("keeps_the_lock", "long", 0.3)
    assert verdict.reason is Reason.ERROR and "keeps_the_lock: the process died" in verdict.feedback
    assert judge("keeps_the_lock").score == 0.5


def test_actors_that_get_no_place_are_one_line() -> None:
    config = GRPOConfig().env_runners(reward_actor={"replicas": 1, "num_cpus": 64}, timeout_s=1.0)
    with pytest.raises(RewardActorsDidNotStart, match="1 actors with 64 CPUs and 0 GPUs each did not start within 1 s"):
        RewardActors(config)
    config.env_runners(reward_actor={"replicas": 1, "resources": {"docker": -1.0}})
    with pytest.raises(ConfigError, match=r"^env_runners.reward_actor: .*docker.*; fix: whole numbers"):
        RewardActors(config)


ENVIRONMENT = """
import os
import sys
import threading
import ray
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Own(Exception):
    pass


class Apart(VerifiableEnv):
    def load_queries(self):
        return [Query(uid=str(n), problem=f"{n}+{n}?", answer="") for n in range(4)]

    def verify(self, query, response):
        if response == "raise":
            raise ValueError("not so")
        if response == "hang":
            threading.Event().wait(60)
        if response == "own":
            raise Own("of this file")
        if response == "exit":
            sys.exit(0)
        if response == "die":
            os._exit(1)
        name = ray.get_runtime_context().get_actor_name() or ""
        return Verdict(name.startswith("reward-"), Reason.EQUAL)
"""


def test_actors_hold_whole_environments(folder: Path, build: Any) -> None:
    (folder / "apart.py").write_text(ENVIRONMENT)
    config = GRPOConfig().environment(f"{folder}/apart.py:Apart")
    config.evaluation(samples=1, k=[1], limit=2).training(group_size=2, queries_per_step=2)
    config.env_runners(max_response_tokens=4, reward_actor={"replicas": 1, "num_cpus": 0.1, "environments": True})
    algorithm = build(config)
    algorithm.training_step()
    assert 1.0 in {sample.reward for sample in algorithm.batch.fresh}  # 0 where a response is cut off, or elsewhere
    assert algorithm.batch.record["rollout/environment_errors"] == 0
    environment = stand_ins(algorithm.config)[Split.TRAIN]()
    for said, error, why in (
        ("raise", EnvironmentFailed, "ValueError: not so.*apart.py, line"),
        ("exit", EnvironmentFailed, "SystemExit: 0.*apart.py, line"),
        ("own", EnvironmentFailed, "Own: of this file.*apart.py, line"),
        ("die", RayActorError, None),
        ("2", EnvironmentFailed, "^the actor of the environment was started again"),
    ):
        environment.reset(seed=1, options={"uid": "1"})
        if said == "2":  # it has just been started again
            environment._key = "another"
        with pytest.raises(error, match=why):
            environment.step(said)
    environment.reset(options={"uid": "1"})
    limit_s, environment._limit_s = environment._limit_s, 0.1
    with pytest.raises(EnvironmentFailed, match=r"did not return within 0.1 s \(env_runners.step_timeout_s\)"):
        environment.step("hang")
    environment._limit_s = limit_s  # and the next episode is in another environment
    assert environment.reset(options={"uid": "1"})[0] == "1+1?" and environment.step("2")[1] == 1.0
    environment.close()


def test_environments_of_agents_stay_with_their_runners() -> None:
    task = {"data": "embedded:train", "agent": "examples.two_opinions:solve"}
    config = GRPOConfig().environment("r3env/Agent-v0", env_config=task)
    config.env_runners(reward_actor={"replicas": 1, "environments": True})
    with pytest.raises(ConfigError, match="reward_actor.environments: r3env/Agent-v0 runs agents"):
        validate_environment(config)
    config.env_runners(reward_actor={"replicas": 0, "environments": True})
    with pytest.raises(ConfigError, match="reward_actor.environments: has no effect without actors"):
        validate_environment(config)


@pytest.mark.parametrize("runners", [0, 1])
def test_training_and_evaluation_judge_in_them(runners: int, folder: Path, build: Any) -> None:
    config = GRPOConfig().environment(
        "r3env/Function-v0",
        data="embedded:train",
        options={"reward": f"{folder}/functions.py:Pool"},
    )
    config.evaluation(data="embedded:heldout", samples=1, k=[1], limit=2)
    config.training(group_size=2, queries_per_step=2)
    config.env_runners(
        num_env_runners=runners,
        max_response_tokens=4,
        reward_actor={"replicas": 2, "num_cpus": 0.1},
    )
    algorithm = build(config)
    algorithm.training_step()
    assert {sample.reward for sample in algorithm.batch.fresh} <= {0.0, 1.0}
    assert algorithm.batch.record["reward/function/Pool"] == 1.0 and algorithm.batch.record["grading/errors"] == 0
    algorithm.evaluate()
    assert len(algorithm.evaluation.answers) == 2


def test_all_responses_of_a_step_wait_for_their_judge_together(folder: Path, build: Any) -> None:
    reward = f"{folder}/functions.py:Together"
    config = GRPOConfig().environment(
        "r3env/Function-v0", data="embedded:train", options={"reward": reward, "grading_timeout_s": 240}
    )
    config.training(group_size=4, queries_per_step=2)
    config.env_runners(max_response_tokens=4, reward_actor={"replicas": 1, "num_cpus": 0.1})
    algorithm = build(config)
    algorithm.training_step()
    assert algorithm.batch.record["reward/function/Together"] == 1.0 and algorithm.batch.record["grading/errors"] == 0
