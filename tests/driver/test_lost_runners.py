"""Requests over real Ray actors: every prompt is answered, whichever runner dies, hangs or raises on the way."""

import os
import signal
import threading
import time

import pytest
import ray

from algorithms.rollout.lost_runners import NoEnvRunnerLeft, StaleWeights

from .conftest import TIMEOUT_S, requests_of, two_runners

pytestmark = pytest.mark.slow

BACK_S = 300


@pytest.fixture(scope="module")
def algorithm(ray_session):
    algorithm = two_runners().build_algo()
    yield algorithm
    algorithm.stop()


@pytest.fixture(scope="module")
def undisturbed(algorithm):
    return tokens_of(algorithm.rollout_workers.rollout(requests_of(algorithm, 1200)))


def pids(algorithm):
    return {
        r.number: ray.get(r.handle.get_pid.remote(), timeout=BACK_S)
        for r in algorithm.rollout_workers.supervisor.runners.values()
    }


def tokens_of(rollouts):
    return {rollout.request_id: rollout.tokens.tolist() for rollout in rollouts}


def counts(algorithm):
    record = algorithm.rollout_workers.metrics([], [])
    return {kind: record[f"rollout/{kind}"] for kind in ("requeued", "stolen", "hung", "stale", "runner_restarts")}


def play_while(algorithm, number, signal_number):
    """1200 requests, while a runner gets a signal as soon as it holds some of them; rollouts and seconds."""
    pid, runner = pids(algorithm)[number], algorithm.rollout_workers.supervisor.runners[number]

    def disturb():
        deadline = time.monotonic() + BACK_S
        while not runner.held and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)  # somewhere in the middle
        os.kill(pid, signal_number)

    disturber = threading.Thread(target=disturb)
    requests = requests_of(algorithm, 1200)
    disturber.start()
    started = time.monotonic()
    rollouts = algorithm.rollout_workers.rollout(requests)
    disturber.join()
    return rollouts, time.monotonic() - started


def assert_as(undisturbed, rollouts, algorithm):
    """Every request once, in order, with the right weights, and its own draw (batches differ by float noise)."""
    assert [rollout.request_id for rollout in rollouts] == list(range(1200))
    assert {rollout.weights_version for rollout in rollouts} == {algorithm.rollout_workers.version}
    drawn = tokens_of(rollouts)
    assert sum(drawn[key] != tokens for key, tokens in undisturbed.items()) <= 12


def train_until_all_are_back(algorithm):
    """A step is shorter than the start of a runner: the others go on without it for a while."""
    deadline = time.monotonic() + BACK_S
    while len(algorithm.rollout_workers.supervisor.ready()) < 2:
        assert time.monotonic() < deadline
        algorithm.train()
        record = algorithm.batch.record
        assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] == 6
        assert record["policy/logp_mismatch_max"] < 1e-4
        time.sleep(1.0)  # its processor time is for what starts


def test_rollouts_come_back_in_the_order_of_their_ids_from_every_runner(algorithm):
    requests = requests_of(algorithm, 40)
    rollouts = algorithm.rollout_workers.rollout(requests[::-1])
    assert [rollout.request_id for rollout in rollouts] == list(range(40))
    assert [rollout.uid for rollout in rollouts] == [request.uid for request in requests]


def test_no_requests_no_rollouts(algorithm):
    assert algorithm.rollout_workers.rollout([]) == []


def test_a_killed_runner_is_replaced_and_its_requests_are_played_again(algorithm, undisturbed):
    before = pids(algorithm)
    counts(algorithm)
    rollouts, _ = play_while(algorithm, 1, signal.SIGKILL)
    assert_as(undisturbed, rollouts, algorithm)
    happened = counts(algorithm)
    assert happened["requeued"] > 0 and happened["hung"] == 0
    train_until_all_are_back(algorithm)
    after = pids(algorithm)
    assert after[1] != before[1] and after[2] == before[2]
    assert counts(algorithm)["runner_restarts"] == happened["runner_restarts"] + 1 == 1


def test_a_stopped_runner_does_not_hold_up_the_others_and_is_replaced(algorithm):
    started = time.monotonic()
    undisturbed = tokens_of(algorithm.rollout_workers.rollout(requests_of(algorithm, 1200)))
    limit = 3 * (time.monotonic() - started) + TIMEOUT_S + 60
    before, hung = pids(algorithm), algorithm.rollout_workers.supervisor.counts.hung
    counts(algorithm)
    rollouts, seconds = play_while(algorithm, 2, signal.SIGSTOP)
    assert_as(undisturbed, rollouts, algorithm)
    assert seconds < limit
    happened = counts(algorithm)
    assert happened["stolen"] + happened["requeued"] > 0  # the other one played what the silent one held
    started = time.monotonic()
    algorithm.train()
    assert time.monotonic() - started < limit
    assert algorithm.batch.record["rollout/prompts_completed"] == 6
    train_until_all_are_back(algorithm)
    after = pids(algorithm)
    assert after[2] != before[2] and after[1] == before[1]
    assert counts(algorithm)["runner_restarts"] == 2 and algorithm.rollout_workers.supervisor.counts.hung == hung + 1
    assert not os.path.exists(f"/proc/{before[2]}")


def test_a_runner_that_raises_is_reported_in_words_and_replaced(algorithm, undisturbed, caplog):
    runner = algorithm.rollout_workers.supervisor.runners[1]
    ray.get(runner.handle.apply.remote(lambda actor: delattr(actor, "episode_runner")))
    counts(algorithm)
    rollouts = algorithm.rollout_workers.rollout(requests_of(algorithm, 300))
    assert len(rollouts) == 300
    assert "env runner 1 raised AttributeError" in caplog.text and "episode_runner" in caplog.text
    assert counts(algorithm)["requeued"] > 0
    train_until_all_are_back(algorithm)


def test_a_runner_that_comes_back_unseen_gets_the_weights_again(algorithm, caplog):
    """Its rollouts with the weights of the start are thrown away, and played again, unless a ping is faster."""
    algorithm.train()
    before = pids(algorithm)
    with algorithm.rollout_workers.supervisor.lock:  # nobody looks
        os.kill(before[1], signal.SIGKILL)
        deadline = time.monotonic() + BACK_S
        while not _answers(algorithm.rollout_workers.supervisor.runners[1]):
            assert time.monotonic() < deadline
        algorithm.rollout_workers.supervisor.runners[1].calls.clear()  # a ping, which would have been refused
        counts(algorithm)
        rollouts = algorithm.rollout_workers.rollout(requests_of(algorithm, 600))
    assert [rollout.request_id for rollout in rollouts] == list(range(600))
    assert {rollout.weights_version for rollout in rollouts} == {algorithm.rollout_workers.version}
    assert counts(algorithm)["stale"] > 0 or "died and restarted unnoticed" in caplog.text
    train_until_all_are_back(algorithm)


def test_all_runners_killed_come_back_too(algorithm):
    before = pids(algorithm)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    rollouts = algorithm.rollout_workers.rollout(requests_of(algorithm, 60))
    assert [rollout.request_id for rollout in rollouts] == list(range(60))
    train_until_all_are_back(algorithm)
    assert not set(before.values()) & set(pids(algorithm).values())


def test_wrong_weights_that_persist_end_the_run(algorithm):
    """An engine that keeps its weights, whatever it is sent."""
    algorithm.train()

    def keep_the_first(runner):
        runner.engine.weights_version = 0
        runner.engine.load_weights = lambda weights, version: None

    ray.get(algorithm.rollout_workers.supervisor.runners[1].handle.apply.remote(keep_the_first))
    with pytest.raises(StaleWeights, match=r"env runner 1 has weights \[0\].*--resume"):
        algorithm.rollout_workers.rollout(requests_of(algorithm, 200))


def test_when_no_runner_can_come_back_the_error_says_what_to_do(algorithm):
    for runner in algorithm.rollout_workers.supervisor.runners.values():
        ray.kill(runner.handle, no_restart=True)
    with pytest.raises(NoEnvRunnerLeft, match=r"(?s)could not be started.*env_runners.timeout_s.*--resume"):
        algorithm.rollout_workers.rollout(requests_of(algorithm, 20))


def _answers(runner):
    try:
        ray.get(runner.handle.get_pid.remote(), timeout=5)
    except ray.exceptions.RayError:
        return False
    return True
