"""`r3env.adapters.skyrl_gym`, against the installed skyrl-gym."""

import json

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed (pip install -e '.[skyrl-gym]')")

from r3env.adapters.skyrl_gym import SkyRLGymEnv  # noqa: E402


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"uid": "eggs", "question": "Six eggs, two broken: how many whole?", "answer": "4"}))
    return {"data": str(path), "columns": {"problem": "question"}}


def test_made_by_id_without_arguments():
    env = gymnasium.make("r3env.adapters.skyrl_gym:SkyRLGym-v0")
    check_env(env.unwrapped)
    observation, info = env.reset(seed=1)
    query = env.unwrapped.query(info["uid"])
    assert observation == f"{query.problem}\n\n{env.unwrapped.instruction}"
    _, reward, terminated, truncated, info = env.step(f"#### {query.answer}")
    assert (reward, terminated, truncated, info["verdict"]) == (1.0, True, False, "equal")
    env.close()


@pytest.mark.parametrize(("response", "reward"), [("#### 4", 1.0), ("It is 4.", 0.0), ("#### 5", 0.0)])
def test_gsm8k_in_one_turn(problems, response, reward):
    env = SkyRLGymEnv("gsm8k", **problems)
    env.reset(options={"uid": "eggs"})
    assert env.step(response)[:3] == ("", reward, True)


def test_gsm8k_in_several_turns(problems):
    env = SkyRLGymEnv("gsm8k_multi_turn", extras={"max_turns": 3}, **problems)
    env.reset(options={"uid": "eggs"})
    observation, reward, terminated, _, info = env.step("#### 5")
    assert "step-by-step" in observation and not terminated and not info["correct"]
    assert reward == pytest.approx(0.2 / 3)
    observation, reward, terminated, _, _ = env.step("I am not sure")
    assert "only the final numeric answer" in observation and (reward, terminated) == (0.0, False)
    assert env.step("#### 4")[1:3] == (1.0, True)
    env.reset(options={"uid": "eggs"})
    infos = [env.step("#### 5")[4] for _ in range(3)]
    assert [info["correct"] for info in infos] == [False] * 3


def test_aimes_negative_reward(problems):
    env = SkyRLGymEnv("aime", **problems)
    for response, reward, correct in (("Answer: 4", 1.0, True), ("Answer: 5", -1.0, False)):
        env.reset(options={"uid": "eggs"})
        _, paid, terminated, _, info = env.step(response)
        assert (paid, terminated, info["correct"]) == (reward, True, correct)


def test_an_unknown_name_is_met_with_the_known_ones():
    with pytest.raises(ValueError, match="no environment 'gsm9k'; it has aime, gsm8k"):
        SkyRLGymEnv("gsm9k")


def test_an_environment_that_rewrites_the_prompt_is_refused(problems, monkeypatch):
    from skyrl_gym.envs.gsm8k.env import GSM8kEnv

    monkeypatch.setattr(GSM8kEnv, "init", lambda self, prompt: ([{"role": "user", "content": "other"}], {}))
    with pytest.raises(ValueError, match="changes the prompt"):
        SkyRLGymEnv("gsm8k", **problems).reset()
