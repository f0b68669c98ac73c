"""Requests over real Ray actors: every prompt is answered, whichever runner dies on the way."""

import os
import signal
import threading
import time

import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.seeds import Purpose, request_seeds
from algorithms.rollout.dispatch import dispatch
from algorithms.rollout.types import Request, Sampling, Split

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def algorithm(short_run_ray):
    algorithm = (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny")
        .env_runners(num_env_runners=2, max_response_tokens=48, num_cpus_per_env_runner=0.5, timeout_s=120)
        .training(lr=1e-4, group_size=4, queries_per_step=6)
        .evaluation(data="embedded:heldout", samples=1, k=[1], limit=4)
        .build_algo()
    )
    yield algorithm
    algorithm.stop()


def pids(algorithm):
    answers = algorithm.env_runner_group.foreach_env_runner("get_pid", local_env_runner=False)
    assert len(answers) == 2
    return answers


def requests_of(algorithm, count):
    uids = algorithm.uids(Split.TRAIN)
    seeds = request_seeds(1, 0, Purpose.ROLLOUT, count)
    return [Request(i, uids[i % len(uids)], i, seed, Sampling(1.0, 1.0, 48)) for i, seed in enumerate(seeds)]


def tokens_of(rollouts):
    return [(rollout.request_id, rollout.tokens.tolist()) for rollout in rollouts]


def test_rollouts_come_back_in_the_order_of_their_ids_from_every_runner(algorithm):
    requests = requests_of(algorithm, 40)
    rollouts = algorithm.runners.play(requests[::-1])
    assert [rollout.request_id for rollout in rollouts] == list(range(40))
    assert [rollout.uid for rollout in rollouts] == [request.uid for request in requests]


def test_no_requests_no_rollouts(algorithm):
    assert algorithm.runners.play([]) == []


def test_a_runner_killed_at_work_is_replaced_and_its_requests_are_played_again(algorithm):
    requests = requests_of(algorithm, 1200)
    undisturbed = tokens_of(algorithm.runners.play(requests))
    before, restarts = pids(algorithm), algorithm.runners.restarts
    killer = threading.Timer(0.4, os.kill, (before[0], signal.SIGKILL))
    killer.start()
    rollouts = algorithm.runners.play(requests)
    killer.join()
    assert tokens_of(rollouts) == undisturbed
    train_until_restarted(algorithm, restarts)
    after = pids(algorithm)
    assert before[0] not in after and before[1] in after
    assert algorithm.runners.restarts == restarts + 1


def train_until_restarted(algorithm, restarts):
    """A step is shorter than the start of a runner: the others go on without it for a while."""
    deadline = time.monotonic() + 90
    while algorithm.runners.restarts == restarts:
        assert time.monotonic() < deadline
        algorithm.train()
        record = algorithm.record
        assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] == 6
        assert record["policy/logp_mismatch_max"] < 1e-4


def test_all_runners_killed_come_back_too(algorithm):
    requests = requests_of(algorithm, 60)
    undisturbed = tokens_of(algorithm.runners.play(requests))
    before = pids(algorithm)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert tokens_of(algorithm.runners.play(requests)) == undisturbed
    deadline = time.monotonic() + 90
    while algorithm.env_runner_group.num_healthy_remote_env_runners() < 2 and time.monotonic() < deadline:
        algorithm.train()
    assert not set(before) & set(pids(algorithm))


def test_silence_ends_in_a_timeout_that_names_its_setting(algorithm):
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="env_runners.timeout_s"):
        dispatch(algorithm.env_runner_group, requests_of(algorithm, 900), chunk=450, timeout_s=0.01, restore=lambda: 0)
    assert time.monotonic() - started < 30
