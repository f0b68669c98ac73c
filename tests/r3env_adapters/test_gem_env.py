"""`r3env.adapters.gem`, against the installed gem-llm."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("gem", reason="gem-llm is not installed (pip install -e '.[gem]')")

from r3env.adapters.gem import GemEnv  # noqa: E402

GUESS = "game:GuessTheNumber-v0-easy"


def secret(env):
    return env._gem.game_number


def test_made_by_id_without_arguments():
    env = gymnasium.make("r3env.adapters.gem:Gem-v0")
    check_env(env.unwrapped)
    observation, info = env.reset(seed=1)
    assert "Guess The Number" in observation and info["uid"].startswith(GUESS)
    env.close()


def test_the_first_turn_shows_the_board():
    env = GemEnv("game:Sudoku-v0-easy", size=1)
    observation, _ = env.reset(seed=0)
    assert "current board layout:\n   C1 C2" in observation


def test_a_game_won_in_two_turns():
    env = GemEnv(GUESS)
    env.reset(options={"uid": f"{GUESS}/3"})
    wrong = 1 if secret(env) != 1 else 2
    observation, reward, terminated, _, info = env.step(f"\\boxed{{{wrong}}}")
    assert (reward, terminated, info["correct"]) == (0.0, False, False)
    assert f"higher than {wrong}" in observation and observation.endswith("Enter your next guess.")
    _, reward, terminated, _, info = env.step(f"\\boxed{{{secret(env)}}}")
    assert (reward, terminated, info["correct"], info["verdict"]) == (1.0, True, True, "equal")


def test_gems_negative_reward_and_end_after_a_turn_without_an_answer():
    env = GemEnv(GUESS)
    env.reset(options={"uid": f"{GUESS}/0"})
    _, reward, terminated, _, info = env.step("no idea")
    assert (reward, terminated, info["correct"]) == (-0.1, True, False)


def test_partial_credit_at_the_last_turn_is_not_a_solution():
    env = GemEnv(GUESS, options={"max_turns": 1})
    env.reset(options={"uid": f"{GUESS}/0"})
    near = secret(env) + 1 if secret(env) < 10 else secret(env) - 1
    _, reward, terminated, _, info = env.step(f"\\boxed{{{near}}}")
    assert 0.5 < reward < 1 and terminated and not info["correct"]


def test_a_query_is_the_same_game_in_every_environment_in_any_order():
    first, second = GemEnv(GUESS), GemEnv(GUESS)
    uids = [f"{GUESS}/{seed}" for seed in range(20)]
    secrets = {}
    for uid in uids:
        first.reset(options={"uid": uid})
        secrets[uid] = secret(first)
    for uid in reversed(uids):
        second.reset(options={"uid": uid})
        assert secret(second) == secrets[uid]
    assert len(set(secrets.values())) > 3


def test_draws_during_an_episode_belong_to_it():
    """A minefield is laid at the first move: the same in many threads as alone."""
    name = "game:Minesweeper-v0-easy"

    def field(uid):
        env = GemEnv(name)
        env.reset(options={"uid": uid})
        return env.step("\\boxed{reveal 2 2}")[0]

    uids = [f"{name}/{seed}" for seed in range(8)]
    alone = [field(uid) for uid in uids]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(field, uids)) == alone
    assert len(set(alone)) > 1


def test_importing_gem_leaves_the_root_logger_alone():
    code = (
        "import logging; root = logging.getLogger(); before = root.level, list(root.handlers)\n"
        "from r3env.adapters.gem import GemEnv; GemEnv(size=1)\n"
        "assert (root.level, root.handlers) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_callers_random_numbers_stay_as_they_are():
    random.seed(5), np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5), np.random.seed(5)
    env = GemEnv(GUESS)
    env.reset(seed=0)
    env.step("\\boxed{4}")
    assert (random.random(), np.random.random()) == expected


def test_held_out_queries_are_others():
    train, held_out = GemEnv(GUESS, size=5), GemEnv(GUESS, size=5, data="heldout")
    assert len(train.uids) == len(held_out.uids) == 5
    assert not set(train.uids) & set(held_out.uids)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="nothing"):
        GemEnv("nothing")
    with pytest.raises(ValueError, match="train or heldout, it is 'test'"):
        GemEnv(GUESS, data="test")
    with pytest.raises(ValueError, match="at least 1, it is 0"):
        GemEnv(GUESS, size=0)


def test_an_environment_that_no_group_can_share_is_refused(monkeypatch):
    env = GemEnv(GUESS, size=2)
    calls = iter(range(10))
    monkeypatch.setattr(env._gem, "reset", lambda seed: (f"opening {next(calls)}", {}))
    with pytest.raises(ValueError, match="differently each time"):
        env._make_queries()
