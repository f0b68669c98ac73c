"""`r3env.adapters.openenv`, against a server of the installed openenv-core."""

import random
import socket
import threading

import gymnasium
import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed (pip install -e '.[openenv]')")

from algorithms.config.errors import ConfigError  # noqa: E402
from algorithms.grpo.config import GRPOConfig  # noqa: E402
from algorithms.preflight.environments import validate_environment  # noqa: E402
from algorithms.rollout.agent_turns import give_up  # noqa: E402
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


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(env):
    env.reset(options={"uid": "train/0"})
    env._session.async_client._message_timeout = 0.01  # of this session alone
    with pytest.raises(TimeoutError):
        env.step("late")
    assert env.reset(options={"uid": "train/1"})[0] == "Guess my number, from 1 to 9. Game 1."
    assert env.step("none")[0] == "Wrong."
    assert env.step(secret(1))[1] == 1.0


def test_a_server_that_was_started_again_costs_no_episode(env):
    env.reset(options={"uid": "train/0"})
    env._session.disconnect()  # as a server that ends does
    assert env.reset(options={"uid": "train/1"})[0] == "Guess my number, from 1 to 9. Game 1."
    assert env.step(secret(1))[1] == 1.0


def test_a_full_server_is_waited_for_and_named_when_it_stays_full(openenv_server):
    with openenv_server(1) as address:
        first, second = OpenEnvEnv(address, size=1), OpenEnvEnv(address, size=1, session_timeout_s=0.5)
        first.reset(options={"uid": "train/0"})
        with pytest.raises(ConnectionError, match="holds no further session; fix: serve it with a larger"):
            second.reset(options={"uid": "train/0"})
        given_up = OpenEnvEnv(address, size=1)
        connect = given_up._connect

        def connect_and_be_given_up():
            given_up.abandon()
            return connect()

        given_up._connect = connect_and_be_given_up
        with pytest.raises(ConnectionError, match="the episode was given up"):
            given_up.reset(options={"uid": "train/0"})
        patient = OpenEnvEnv(address, size=1)
        threading.Timer(0.5, first.close).start()
        patient.reset(options={"uid": "train/0"})
        patient.close()


def test_an_episode_that_is_cut_off_leaves_its_session_to_another(openenv_server):
    with openenv_server(1) as address:
        cut_off, waiting = OpenEnvEnv(address, size=1), OpenEnvEnv(address, size=1)
        cut_off.reset(options={"uid": "train/0"})
        give_up(cut_off)
        waiting.reset(options={"uid": "train/0"})
        cut_off.abandon()  # holds none any more
        assert waiting.step(secret(0))[1] == 1.0


class Chess(gymnasium.Env):
    """An environment in which a player may abandon a piece."""

    def abandon(self, piece):
        return piece


def test_an_environment_that_has_another_method_of_that_name_ends_no_runner():
    give_up(Chess())
    give_up(gymnasium.Env())


def settings(url, **options):
    options = {"url": url, "size": 2, **options}
    return GRPOConfig().environment("r3env.adapters.openenv:OpenEnv-v0", data="train", options=options)


def test_without_a_server_a_run_is_refused_with_the_address():
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConfigError) as raised:
            validate_environment(settings(url), fetch=False)
    said = str(raised.value)
    assert said.startswith(f"environment.options.url: no OpenEnv server answers at {url} (")
    assert "; fix: start the server first" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "action", "line"),
    [
        ("Guess", "guess", "has no field 'guess'; it has message; fix: environment.options.action=message"),
        ("Guess", "metadata", "field 'metadata' of the action of URL takes no text; fix: environment.options.action="),
        ("GuessWithName", "guess", "an action of URL needs player beside 'guess', and a response fills one field; fix"),
        ("Move", "row", "field 'row' of the action of URL takes no text; fix: none of its fields is text"),
    ],
)
def test_an_action_that_a_response_cannot_be_is_refused_before_the_start(openenv_server, kind, action, line):
    with openenv_server(8, kind) as address, pytest.raises(ConfigError) as raised:
        validate_environment(settings(address, action=action))
    said = str(raised.value)
    assert said.startswith("environment.options.action: ") and line.replace("URL", address) in said


def test_a_server_of_one_session_is_refused_where_several_episodes_run_at_a_time(openenv_server):
    with openenv_server(1) as address:
        several = settings(address).training(queries_per_step=4, group_size=3)
        with pytest.raises(ConfigError) as raised:
            validate_environment(several.env_runners(max_num_seqs=6))
        said = str(raised.value)
        assert said.startswith(f"environment.options.url: {address} holds one session, and up to 6 episodes run at a ")
        assert "max_concurrent_envs=6" in said
        for one in (settings(address).env_runners(max_num_seqs=1), settings(address, sessions=1)):
            assert validate_environment(one, fetch=False).queries == 2  # not "a data set on the Hub"


def test_a_part_of_a_mixture_is_named_in_the_line(openenv_server):
    with openenv_server(1) as address:
        parts = {"game": {"id": "r3env.adapters.openenv:OpenEnv-v0", "options": {"url": address, "action": "say"}}}
        config = GRPOConfig().environment("r3env/Mixture-v0", options={"environments": parts})
        with pytest.raises(ConfigError, match=r"^environment\.options\.environments\.game\.options\.action: "):
            validate_environment(config)
        parts["game"]["options"] = {"url": address, "size": 1}
        with pytest.raises(ConfigError, match=r"^environment\.options\.environments\.game\.options\.url: "):
            validate_environment(config)


def test_a_field_that_is_not_there_is_named(url):
    with pytest.raises(ValueError, match=r"has no field 'words'; it has (metadata, )?text, turn"):
        _ = OpenEnvEnv(url, size=1, observation="words").uids


def test_arguments_are_checked(url):
    with pytest.raises(ValueError, match="data must be train or heldout"):
        OpenEnvEnv(url, data="test")
    with pytest.raises(ValueError, match="size must be positive"):
        OpenEnvEnv(url, size=0)
    with pytest.raises(ValueError, match="sessions: must be positive, it is 0"):
        OpenEnvEnv(url, sessions=0)
