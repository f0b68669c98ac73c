"""Episodes of the abstract environment, played on a small one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from r3env.core import Query, Reason, Verdict, VerifiableEnv

QUERIES = [Query("one", "1+0", "1"), Query("two", "1+1", "2", "hard"), Query("three", "1+2", "3")]


class Sums(VerifiableEnv):
    loads = 0

    def load_queries(self) -> Sequence[Query]:
        self.loads += 1
        return QUERIES

    def verify(self, query: Query, response: str) -> Verdict:
        if response == "hang":
            return Verdict(False, Reason.TIMEOUT)
        correct = response == query.answer
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


@pytest.mark.filterwarnings("ignore:.*not having a spec")
@pytest.mark.parametrize("max_turns", [1, 3])
def test_passes_gymnasiums_checker(max_turns: int) -> None:
    check_env(Sums(max_turns=max_turns))


def test_queries_are_loaded_once_and_only_when_needed() -> None:
    env = Sums()
    assert env.loads == 0
    assert env.uids == ["one", "two", "three"]
    assert env.query("two") == QUERIES[1]
    env.reset(seed=0)
    assert env.loads == 1


def test_single_turn_right_and_wrong() -> None:
    env = Sums(instruction="Answer only.")
    assert env.reset(options={"uid": "two"}) == ("1+1\n\nAnswer only.", {"uid": "two"})
    assert env.step("2") == ("", 1.0, True, False, {"uid": "two", "correct": True, "verdict": "equal"})
    env.reset(options={"uid": "two"})
    assert env.step("3") == ("", 0.0, True, False, {"uid": "two", "correct": False, "verdict": "different"})


def test_a_verdicts_feedback_is_in_the_info_of_its_turn() -> None:
    class Explained(Sums):
        def verify(self, query: Query, response: str) -> Verdict:
            verdict = super().verify(query, response)
            return verdict if verdict.correct else replace(verdict, feedback=f"{response} is too much")

    env = Explained(max_turns=2)
    env.reset(options={"uid": "two"})
    assert env.step("3")[4]["feedback"] == "3 is too much"
    assert "feedback" not in env.step("2")[4]


def test_live_reflection_ends_with_the_first_right_answer() -> None:
    env = Sums(max_turns=3, reflection_guidance="Think again.")
    observation, _ = env.reset(options={"uid": "three"})
    assert observation == "1+2"
    assert env.step("4")[:4] == ("Think again.", 0.0, False, False)
    assert env.step("3")[:4] == ("", 1.0, True, False)
    with pytest.raises(ResetNeeded):
        env.step("3")


def test_live_reflection_ends_when_the_turns_are_used_up() -> None:
    env = Sums(max_turns=2)
    env.reset(options={"uid": "one"})
    observation, *_ = env.step("no")
    assert observation == env.reflection_guidance
    assert env.step("no")[2] is True


def test_a_failed_attempt_starts_with_the_guidance() -> None:
    env = Sums(reflection_guidance="Think again.")
    observation, info = env.reset(options={"uid": "two", "failed_attempt": "It is 5."})
    assert observation == "Think again."
    assert info == {
        "uid": "two",
        "conversation": (
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": "It is 5."},
        ),
    }
    assert env.step("2")[:3] == ("", 1.0, True)


def test_an_empty_failed_attempt_is_an_attempt() -> None:
    _, info = Sums().reset(options={"uid": "two", "failed_attempt": ""})
    assert info["conversation"][1]["content"] == ""


def test_draws_follow_the_seed_and_reach_every_query() -> None:
    env = Sums()
    env.reset(seed=5)
    first = [env.reset()[1]["uid"] for _ in range(40)]
    env.reset(seed=5)
    assert [env.reset()[1]["uid"] for _ in range(40)] == first
    assert set(first) == set(env.uids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uid": "tow"}, "unknown uid 'tow'; the nearest is 'two'"),
        ({"uid": 2}, "unknown uid 2"),
        ({"uuid": "two"}, "unknown reset option 'uuid'; the nearest is 'uid'"),
        ({"uid": "two", "attempt": "x"}, "the nearest is 'failed_attempt'"),
        ({"uid": "two", "failed_attempt": 3}, "failed_attempt must be text"),
    ],
)
def test_wrong_options_name_the_nearest_right_ones(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sums().reset(options=options)


def test_refused_options_leave_the_running_episode_alone() -> None:
    env = Sums()
    env.reset(options={"uid": "one"})
    with pytest.raises(ValueError, match="unknown uid"):
        env.reset(options={"uid": "none"})
    assert env.step("1")[4]["uid"] == "one"


def test_unknown_uid_and_misuse() -> None:
    env = Sums()
    with pytest.raises(ValueError, match="nearest is 'three'"):
        env.query("tree")
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="must be text"):
        env.step(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_turns"):
        Sums(max_turns=0)


def test_empty_and_ambiguous_query_sets_are_refused() -> None:
    class Empty(Sums):
        def load_queries(self) -> Sequence[Query]:
            return []

    class Twice(Sums):
        def load_queries(self) -> Sequence[Query]:
            return [QUERIES[0], QUERIES[0]]

    with pytest.raises(ValueError, match="no queries"):
        Empty().reset()
    with pytest.raises(ValueError, match="same uid"):
        Twice().reset()


def test_prompt_feedback_and_reward_can_be_overridden() -> None:
    class Chatty(Sums):
        def prompt(self, query: Query) -> str:
            return f"What is {query.problem}?"

        def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
            return f"{response} is {verdict.reason}."

        def reward(self, query: Query, verdict: Verdict) -> float:
            return 0.5 if verdict.reason is Reason.TIMEOUT else -1.0

    env = Chatty(max_turns=2)
    assert env.reset(options={"uid": "one"})[0] == "What is 1+0?"
    observation, reward, *_, info = env.step("hang")
    assert (observation, reward, info["verdict"]) == ("hang is timeout.", 0.5, "timeout")
    assert env.reset(options={"uid": "one", "failed_attempt": "9"})[0] == "9 is different."


def test_only_timeouts_and_errors_are_not_trusted() -> None:
    trusted = {reason for reason in Reason if Verdict(False, reason).trusted}
    assert trusted == {Reason.EQUAL, Reason.DIFFERENT, Reason.NO_ANSWER}
