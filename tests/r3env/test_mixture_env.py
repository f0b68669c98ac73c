"""`r3env/Mixture-v0`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import r3env
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.envs.mixture import MixtureEnv


class Echo(VerifiableEnv):
    """Wants its problem back, and says so."""

    def __init__(self, count: int = 6, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.count = count

    def load_queries(self) -> Sequence[Query]:
        return [Query(f"{number}", f"say {number}", f"{number}") for number in range(self.count)]

    def verify(self, query: Query, response: str) -> Verdict:
        correct = response == query.answer
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, 1.0 if correct else 0.25)

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        return f"not {response}"


class Coin(VerifiableEnv):
    """Draws something of its own in every episode."""

    def load_queries(self) -> Sequence[Query]:
        return [Query("coin", "guess", "")]

    def verify(self, query: Query, response: str) -> Verdict:
        return Verdict(response == str(self.np_random.integers(1000)), Reason.DIFFERENT)

    def prompt(self, query: Query) -> str:
        return f"{query.problem} {self.np_random.integers(1000)}"


for _name, _entry in (("test/Echo-v0", Echo), ("test/Coin-v0", Coin)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, _entry)


def mixture(**parts: dict[str, Any]) -> MixtureEnv:
    return MixtureEnv({name: {"id": "test/Echo-v0", **part} for name, part in parts.items()})


@pytest.mark.filterwarnings("ignore:.*not having a spec")
def test_passes_gymnasiums_checker() -> None:
    check_env(MixtureEnv())
    check_env(mixture(a={"options": {"max_turns": 3}}, b={"weight": 2.0}))
    check_env(MixtureEnv({"coin": {"id": "test/Coin-v0"}}))


def test_made_by_id_without_arguments() -> None:
    env = gymnasium.make(r3env.MIXTURE_ID)
    seen = Counter(env.reset(seed=seed)[1]["uid"].partition("/")[0] for seed in range(40))
    assert set(seen) == {"one_turn", "two_turns"}


def test_uids_are_prefixed_and_every_query_is_listed_without_weights() -> None:
    env = mixture(a={"options": {"count": 2}}, b={"options": {"count": 3}})
    assert env.uids == ["a/0", "a/1", "b/0", "b/1", "b/2"]
    assert env.query("b/2") == Query("b/2", "say 2", "2")
    for uid in ("c/0", "a/7", "a", "0"):
        with pytest.raises(ValueError, match="unknown uid"):
            env.query(uid)


def test_a_problem_of_no_part_is_posed_as_the_first_one_poses_its_own() -> None:
    env = MixtureEnv({"a": {"id": "r3env/Math-v0", "options": {"instruction": "Box it."}}, "b": {"id": "test/Echo-v0"}})
    assert env.prompt(Query("", "What is 1 + 1?", "")) == "What is 1 + 1?\n\nBox it."


@pytest.mark.parametrize(
    ("weights", "sizes", "expected"),
    [
        ((1, 1), (10, 4), (4, 4)),
        ((3, 1), (30, 50), (30, 10)),
        ((0.3, 0.7), (3, 7), (3, 7)),
        ((1, 1000), (5, 5), (1, 5)),
        ((None, 2), (4, 100), (4, 8)),
    ],
)
def test_weights_are_shares_of_the_listed_queries(
    weights: tuple[float | None, float], sizes: tuple[int, int], expected: tuple[int, int]
) -> None:
    parts = {name: {"weight": w, "options": {"count": n}} for name, w, n in zip("ab", weights, sizes, strict=True)}
    env = mixture(**parts)
    listed = Counter(uid.partition("/")[0] for uid in env.uids)
    assert (listed["a"], listed["b"]) == expected
    assert len(set(env.uids)) == sum(expected)
    assert all(env.query(uid).uid == uid for uid in env.uids)
    assert mixture(**parts).uids == env.uids


def test_the_seed_says_which_queries_stay_out() -> None:
    parts = {name: {"id": "test/Echo-v0", "weight": 1, "options": {"count": n}} for name, n in (("a", 50), ("b", 5))}
    assert MixtureEnv(parts, seed=1).uids != MixtureEnv(parts, seed=2).uids


def test_draws_follow_the_shares() -> None:
    env = mixture(a={"weight": 3, "options": {"count": 30}}, b={"weight": 1, "options": {"count": 10}})
    env.reset(seed=0)
    drawn = Counter(env.reset()[1]["uid"].partition("/")[0] for _ in range(2000))
    assert 0.7 < drawn["a"] / 2000 < 0.8


def test_each_episode_is_its_parts_own() -> None:
    env = mixture(short={}, long={"options": {"max_turns": 2, "instruction": "Go."}})
    assert env.reset(options={"uid": "short/3"}) == ("say 3", {"uid": "short/3"})
    assert env.step("4") == ("", 0.25, True, False, {"uid": "short/3", "correct": False, "verdict": "different"})
    assert env.reset(options={"uid": "long/3"})[0] == "say 3\n\nGo."
    assert env.step("4")[:4] == ("not 4", 0.25, False, False)
    assert env.step("3")[:4] == ("", 1.0, True, False)
    with pytest.raises(ResetNeeded):
        env.step("3")
    observation, info = env.reset(options={"uid": "long/3", "failed_attempt": "5"})
    assert observation == "not 5" and info["conversation"][1]["content"] == "5"
    assert env.prompt(env.query("long/3")) == "say 3\n\nGo."
    assert env.verify(env.query("long/3"), "3").correct


def test_common_arguments_reach_every_part_and_own_options_go_first() -> None:
    parts = {"a": {"id": "test/Echo-v0"}, "b": {"id": "test/Echo-v0", "options": {"count": 1}}}
    assert MixtureEnv(parts, count=2).uids == ["a/0", "a/1", "b/0"]


def test_mixtures_share_the_queries_of_parts_that_share_theirs(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i}", "answer": f"{i}"}) + "\n" for i in range(50)))
    parts = {"a": {"id": r3env.MATH_ID, "options": {"data": str(path)}, "weight": 1}, "b": {"id": r3env.MATH_ID}}
    environments = [MixtureEnv(parts) for _ in range(10)]
    assert len({id(env.queries) for env in environments}) == 1
    assert MixtureEnv(parts, seed=1).queries is not environments[0].queries


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "name at least one"),
        ({"a/b": {"id": "test/Echo-v0"}}, "the name 'a/b'"),
        ({"a": {}}, "environments.a: must be a mapping with `id`"),
        ({"a": {"id": "test/Echo-v0", "wieght": 1}}, "unknown key 'wieght'; the nearest is 'weight'"),
        ({"a": {"id": "test/Echo-v0", "weight": 0}}, "environments.a.weight must be a positive number"),
        ({"a": {"id": "test/Ecko-v0"}}, "environments.a: test/Ecko-v0 cannot be made"),
        ({"a": {"id": "CartPole-v1"}}, "is not a r3env.core.VerifiableEnv"),
        (
            {"a": {"id": "test/Echo-v0", "options": {"cuont": 1}}},
            "environments.a: test/Echo-v0 cannot be made: unknown option 'cuont'; the nearest is 'count'",
        ),
        ({"a": {"id": "test/Echo-v0", "options": [1]}}, "environments.a.options must be a mapping, it is [1]"),
        ({"a": {"id": 7}}, "environments.a.id must be text, it is 7"),
        ({1: {"id": "test/Echo-v0"}}, "the name 1 must not be empty"),
        ([1], "environments must map names of yours to `id`, `weight` and `options`, it is a list"),
    ],
)
def test_mistakes_name_the_part(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="environments") as caught:
        MixtureEnv(parts)
    assert message in str(caught.value) and "kwargs" not in str(caught.value)


def test_reward_functions_of_the_same_name_in_two_parts_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def brief(response):\n    return 1 / len(response)\n")
    part = {"id": "r3env/Function-v0", "options": {"reward": f"{tmp_path}/mine.py:brief", "grading_timeout_s": 60.0}}
    env = MixtureEnv({"a": part, "b": part}, data="embedded:train")
    for name in ("a", "b"):
        env.reset(options={"uid": next(uid for uid in env.uids if uid.startswith(f"{name}/"))})
        assert env.step("1234")[4]["rewards"] == {f"{name}/brief": 0.25}


class Slow(Echo):
    """Is let go of while its episode begins."""

    left = 0
    within: MixtureEnv

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        self.within.abandon()
        return super().reset(**arguments)

    def abandon(self) -> None:
        self.left += 1


def test_a_part_whose_episode_begins_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r3env.envs.mixture._make_env", lambda *_: Slow())
    env = MixtureEnv({"slow": {"id": "r3env/Math-v0"}})
    monkeypatch.setattr(Slow, "within", env, raising=False)
    env.reset(options={"uid": "slow/1"})
    assert env.parts["slow"].left == 1  # type: ignore[attr-defined]
