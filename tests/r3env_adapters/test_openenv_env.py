"""`r3env.adapters.openenv`, against a server of the installed openenv-core."""

import random
import socket
import threading

import gymnasium
import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed (pip install -e '.[openenv]')")

from r3env.adapters.openenv import OpenEnvEnv  # noqa: E402


@pytest.fixture(scope="module")
def url(openenv_server):
    with openenv_server(8) as address:
        yield address


@pytest.fixture
def env(url):
    made = OpenEnvEnv(url, size=4)
    yield made
    made.close()


def secret(seed):
    return str(random.Random(seed).randint(1, 9))


def test_made_by_id_it_poses_the_server_s_first_observation_of_each_seed(url):
    env = gymnasium.make("r3env.adapters.openenv:OpenEnv-v0", url=url, size=3, data="heldout").unwrapped
    assert env.uids == ["heldout/1000000", "heldout/1000001", "heldout/1000002"]
    observation, _ = env.reset(options={"uid": "heldout/1000001"})
    assert observation == "Guess my number, from 1 to 9. Game 1000001."
    env.close()


def test_a_game_won_in_two_turns(env):
    env.reset(options={"uid": "train/3"})
    wrong = "1" if secret(3) != "1" else "2"
    observation, reward, terminated, _, info = env.step(wrong)
    assert (observation, reward, terminated, info["correct"]) == ("Wrong.", 0.0, False, False)
    _, reward, terminated, _, info = env.step(secret(3))
    assert (reward, terminated, info["correct"]) == (1.0, True, True)


def test_the_server_ends_an_episode_that_is_lost(env):
    env.reset(options={"uid": "train/0"})
    assert [env.step("none")[2] for _ in range(3)] == [False, False, True]


def test_episodes_run_beside_each_other(url):
    envs = [OpenEnvEnv(url, size=4) for _ in range(4)]
    for seed, one in enumerate(envs):
        one.reset(options={"uid": f"train/{seed}"})
    for seed, one in enumerate(envs):
        assert one.step(secret(seed))[1] == 1.0
    for one in envs:
        one.close()


def test_options_reach_reset(url):
    env = OpenEnvEnv(url, size=1, options={"top": 5})
    assert env.reset(options={"uid": "train/0"})[0] == "Guess my number, from 1 to 5. Game 0."
    env.close()


def test_a_step_that_fails_is_an_error_and_the_next_episode_has_a_session(env):
    env.reset(options={"uid": "train/0"})
    with pytest.raises(RuntimeError):
        env.step("crash")
    env.reset(options={"uid": "train/0"})
    assert env.step(secret(0))[1] == 1.0


def test_a_full_server_is_waited_for_and_named_when_it_stays_full(openenv_server):
    with openenv_server(1) as address:
        first, second = OpenEnvEnv(address, size=1), OpenEnvEnv(address, size=1, timeout_s=0.5)
        first.reset(options={"uid": "train/0"})
        with pytest.raises(ConnectionError, match="holds no further session; fix: serve it with a larger"):
            second.reset(options={"uid": "train/0"})
        patient = OpenEnvEnv(address, size=1, timeout_s=60)
        threading.Timer(0.5, first.close).start()
        patient.reset(options={"uid": "train/0"})
        patient.close()


def test_without_a_server_the_address_is_named():
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=address):
            _ = OpenEnvEnv(f"http://{address}").uids


def test_a_field_that_is_not_there_is_named(url):
    with pytest.raises(ValueError, match=r"has no field 'words'; it has text, turn"):
        _ = OpenEnvEnv(url, size=1, observation="words").uids


def test_arguments_are_checked(url):
    with pytest.raises(ValueError, match="data must be train or heldout"):
        OpenEnvEnv(url, data="test")
    with pytest.raises(ValueError, match="size must be positive"):
        OpenEnvEnv(url, size=0)
