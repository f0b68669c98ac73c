"""What all adapters have in common, on an environment made for this test."""

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from r3env.adapters.foreign import ForeignEnv, Reply
from r3env.core import Query


class Countdown(ForeignEnv):
    """Ends at zero; pays half for each `down`, and says whether it was solved only if asked to."""

    says = None

    def load_queries(self):
        return [Query("two", "Count down from 2.", "")]

    def begin(self, query):
        self.left = 2

    def reply(self, response):
        down = response == "down"
        self.left -= down
        return Reply(f"{self.left} left", 0.5 if down else -0.25, self.left == 0, self.says)


@pytest.mark.filterwarnings("ignore:.*not having a spec")
def test_passes_gymnasiums_checker():
    check_env(Countdown())


def test_the_other_environment_decides_when_it_is_over():
    env = Countdown()
    assert env.reset() == ("Count down from 2.", {"uid": "two"})
    assert env.step("down") == ("1 left", 0.5, False, False, {"uid": "two", "correct": False, "verdict": "different"})
    assert env.step("down") == ("", 0.5, True, False, {"uid": "two", "correct": True, "verdict": "equal"})
    with pytest.raises(ResetNeeded):
        env.step("down")


def test_rewards_that_do_not_add_up_solve_nothing():
    env = Countdown()
    env.reset()
    assert [env.step(response)[1] for response in ("what?", "down")] == [-0.25, 0.5]
    assert env.step("down")[4]["correct"] is False


@pytest.mark.parametrize("says", [True, False])
def test_the_other_environments_own_word_counts_more_than_its_rewards(says):
    env = Countdown(correct_at=0.0 if not says else 9.0)
    env.says = says
    env.reset()
    assert env.step("down")[4]["correct"] is False
    assert env.step("down")[4]["correct"] is says


def test_an_episode_after_a_stored_failure_begins_anew_and_says_so():
    env = Countdown(reflection_guidance="Think.")
    env.reset()
    env.step("down")
    observation, info = env.reset(options={"uid": "two", "failed_attempt": "up"})
    assert observation == "Think.\n\nCount down from 2."
    assert [message["role"] for message in info["conversation"]] == ["user", "assistant"]
    assert [env.step("down")[2] for _ in range(2)] == [False, True]


def test_a_response_must_be_text():
    env = Countdown()
    env.reset()
    with pytest.raises(TypeError, match="must be text"):
        env.step(3)
