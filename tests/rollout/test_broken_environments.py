"""Environments that raise, hang or cannot be made: an episode's error is that episode's data."""

import functools
import itertools
import re
import sys
from types import SimpleNamespace

import gymnasium
import pytest
from ray.exceptions import GetTimeoutError

from algorithms.rollout import environment_actors
from algorithms.rollout.environment_actors import EnvironmentFailed, StandIn
from algorithms.rollout.types import Split
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.grading import grade

from .requests import LIMIT, requests_of

HARD_TO_GRADE = r"\boxed{9^{9^{9^{9}}}}"


class Scripted(VerifiableEnv):
    """Each query's uid says what its environment does wrong."""

    def load_queries(self):
        kinds = ("fine", "reset", "step", "nan", "inf", "arity", "info", "observation", "timeout", "hangs", "error")
        return [Query(kind, "1+2", "3") for kind in kinds]

    def verify(self, query, response):
        if query.uid == "hangs":
            return grade(HARD_TO_GRADE, "7", timeout_s=0.3)
        reason = {"timeout": Reason.TIMEOUT, "error": Reason.ERROR}.get(query.uid, Reason.EQUAL)
        return Verdict(reason is Reason.EQUAL, reason)

    def reset(self, *, seed=None, options=None):
        if options["uid"] == "reset":
            raise OSError("the data is gone")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        match info["uid"]:
            case "step":
                raise KeyError("no such tool")
            case "nan" | "inf" as value:
                return observation, float(value), terminated, truncated, info
            case "arity":
                return observation, reward, terminated, info
            case "info":
                return observation, reward, terminated, truncated, None
            case "observation":
                return None, 0.0, False, False, info | {"correct": False, "verdict": "different"}
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("uid", "named"),
    [
        ("reset", "the data is gone"),
        ("step", "no such tool"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("arity", "unpack"),
        ("info", "NoneType"),
        ("observation", "step"),
        ("unheard-of", "unknown uid"),
    ],
)
def test_a_broken_environment_is_its_episodes_error_alone(runner_with, uid, named):
    before, broken, after = runner_with(Scripted).rollout(requests_of(["fine", uid, "fine"]))
    assert broken.verdict == "environment_error" and named in broken.error
    assert not broken.correct
    assert before.error is None and before.correct
    assert after.error is None and after.correct


@pytest.mark.parametrize(("uid", "verdict"), [("timeout", "timeout"), ("hangs", "timeout"), ("error", "error")])
def test_an_answer_that_nobody_could_grade_is_an_error_not_a_failure(runner_with, uid, verdict):
    rollout, fine = runner_with(Scripted).rollout(requests_of([uid, "fine"]))
    assert rollout.verdict == verdict and verdict in rollout.error and not rollout.correct
    assert fine.error is None


def test_environments_are_used_again(runner_with):
    made = []

    def make():
        made.append(Scripted())
        return made[-1]

    runner = runner_with(Scripted)
    runner._make_environment = dict.fromkeys(Split, make)
    for _ in range(3):
        runner.rollout(requests_of(["fine", "reset", "nan", "fine"]))
    assert len(made) == 4


def test_an_environment_that_cannot_be_made_is_its_episodes_error_alone_and_the_next_one_is_tried(runner_with):
    made, numbers = [], itertools.count()

    def make():
        number = next(numbers)
        made.append(number)
        if number == 1:
            raise OSError("no license is free")
        return Scripted()

    runner = runner_with(Scripted)
    runner._make_environment = dict.fromkeys(Split, make)
    rollouts = runner.rollout(requests_of(["fine"] * 3))
    (broken,) = [rollout for rollout in rollouts if rollout.error]
    assert broken.verdict == "environment_error" and not broken.correct
    assert re.fullmatch(
        r"make: OSError\('no license is free'\) \(test_broken_environments.py, line \d+\)", broken.error
    )
    assert all(rollout.correct for rollout in rollouts if rollout is not broken)
    assert [rollout.error for rollout in runner.rollout(requests_of(["fine"] * 3))] == [None] * 3
    assert len(made) == 4, "two were there to be used again"


def test_where_none_can_be_made_every_episode_has_failed(runner_with):
    runner = runner_with(functools.partial(sys.exit, "no license"))
    rollouts = runner.rollout(requests_of(["fine"] * 3))
    assert [rollout.error for rollout in rollouts] == ["make: SystemExit('no license')"] * 3


class Unclosable(Scripted):
    """Raises when it is closed."""

    attempts = 0

    def close(self):
        type(self).attempts += 1
        raise ConnectionError("the service is gone")


def test_environments_that_cannot_be_closed_keep_neither_the_others_nor_the_engine(runner_with, monkeypatch):
    monkeypatch.setattr(Unclosable, "attempts", 0)
    runner = runner_with(Unclosable)
    runner.rollout(requests_of(["fine", "fine"]))
    closed = []
    monkeypatch.setattr(runner.engine, "close", lambda: closed.append("engine"))
    runner.close()
    assert closed == ["engine"]
    assert Unclosable.attempts == 2


class Calls:
    """An actor whose environments answer nothing but that they were made."""

    def __init__(self):
        self.seen = []

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *values: self.seen.append((method, values)) or (method, values))


def test_an_environment_apart_that_does_not_return_is_closed(monkeypatch):
    def get(reply, timeout):
        if reply[0] != "make":
            raise GetTimeoutError
        return {}

    monkeypatch.setattr(environment_actors.ray, "get", get)
    actor = Calls()
    environment = StandIn(actor, {}, 0.1)
    made = environment._key
    with pytest.raises(EnvironmentFailed, match="did not return"):
        environment.step("2")
    assert actor.seen[-1] == ("close", (made,))
    assert environment._key != made


class Forgetful(Scripted):
    """Every other answer cannot be graded."""

    def load_queries(self):
        return [Query(f"q{i}", f"{i}+1", str(i + 1)) for i in range(1, 7)]

    def verify(self, query, response):
        odd = len(response) % 2
        return Verdict(not odd, Reason.TIMEOUT if odd else Reason.EQUAL)


gymnasium.register(id="tests/Forgetful-v0", entry_point=Forgetful)


def test_ungraded_answers_leave_their_group(short_run_ray):
    from algorithms.grpo.config import GRPOConfig

    algorithm = (
        GRPOConfig()
        .environment("tests/Forgetful-v0")
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=LIMIT)
        .training(group_size=6, queries_per_step=6, lr=0.0)
        .env_runners(max_failed_share=1.0)
        .evaluation(samples=1, k=[1])
        .build_algo()
    )
    try:
        algorithm.train()
        kept = [sample.rollout for group in algorithm.batch.groups for sample in group.samples]
        assert 0 < len(kept) < 36
        assert len(kept) + algorithm.batch.record["grading/timeouts"] == 36
        assert all(rollout.verdict == "equal" for rollout in kept if not rollout.truncated)
        assert algorithm.batch.record["rollout/prompts_completed"] == 6
    finally:
        algorithm.stop()
