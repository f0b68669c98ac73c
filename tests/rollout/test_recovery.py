"""Runners that die come back at once, also while nothing is rolled out, and spares take their places; toy actors."""

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from algorithms.rollout.lost_runners import NoEnvRunnerLeft, StaleWeights, WorkersClosed
from algorithms.rollout.remote_runner import RunnerState
from algorithms.rollout.scheduler import DispatchPlan
from algorithms.rollout.stream import RolloutStream
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.rollout.types import Prompt, Request, RunnerReport, Sampling
from tests.own_ray import own_ray

LONG_S = 120.0
# Ray's processes cannot import a test's module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def ray_session():
    with own_ray():
        yield


class Toy:
    """A runner without an engine: it answers a request by its id, and starts when it is let."""

    def __init__(self, folder):
        self.version, self.folder = 0, Path(folder)
        with (self.folder / "starts").open("a") as file:
            file.write(f"{os.getpid()}\n")
        while (self.folder / "closed").exists():
            time.sleep(0.02)

    def get_pid(self):
        return os.getpid()

    def set_state(self, state):
        self.version = state["version"]
        return self.version

    def advance(self, requests, withdraw, seconds):
        if any(request.uid == "raises" for request in requests) and not (self.folder / "raised").exists():
            (self.folder / "raised").touch()
            raise ValueError("on purpose")
        rollouts = tuple(_Rollout(request.id, self.version) for request in requests)
        return RunnerReport(rollouts, unfinished=0, generated_tokens=1, engine_seconds=0.0)


@dataclass
class _Rollout:
    """What the stream reads of a rollout."""

    request_id: int
    weights_version: int


class Pool:
    """Toy actors, their supervisor, and the events of its reports."""

    def __init__(self, folder, runners, spares, weights=None):
        self.folder = folder
        self.folders = {number: folder / str(number) for number in range(1, runners + spares + 1)}
        for place in self.folders.values():
            place.mkdir()
        actor = ray.remote(num_cpus=0, max_restarts=-1)(Toy)
        self.changed, self.healthy = threading.Condition(), {}
        self.supervisor = WorkerSupervisor(
            {number: actor.remote(str(place)) for number, place in self.folders.items()},
            timeout_s=LONG_S,
            weights=weights or (lambda: (self.supervisor.version, {"version": self.supervisor.version})),
            on_health=self._note,
            spares=range(runners + 1, runners + spares + 1),
        )
        self.push(1)
        plan = DispatchPlan.of(continuous_batching=True, max_num_seqs=4)
        self.stream = RolloutStream(self.supervisor, plan)
        self.stream.start_thread()

    def _note(self, number, healthy):
        with self.changed:
            self.healthy[number] = healthy
            self.changed.notify_all()

    def push(self, version):
        with self.supervisor.lock:
            ray.get([runner.handle.set_state.remote({"version": version}) for runner in self.supervisor.up()])
            self.supervisor.confirm(version, {})

    def wait_for(self, number, healthy):
        with self.changed:
            assert self.changed.wait_for(lambda: self.healthy.get(number) is healthy, LONG_S)
        with self.supervisor.lock:  # until who noticed it has done what follows
            pass

    def pid(self, number):
        return ray.get(self.supervisor.runners[number].handle.get_pid.remote(), timeout=LONG_S)

    def answer(self, number):
        """Its process, or None while it starts."""
        try:
            return self.pid(number)
        except ray.exceptions.RayError:
            return None

    def kill(self, number):
        os.kill(self.pid(number), signal.SIGKILL)

    def close_gate(self, number):
        (self.folders[number] / "closed").touch()

    def open_gate(self, number):
        (self.folders[number] / "closed").unlink()

    def starts(self, number):
        return (self.folders[number] / "starts").read_text().split()

    def roll_out(self, count, uid="q"):
        requests = [Request(key, Prompt(uid), 0, key, Sampling()) for key in range(count)]
        return self.stream.collect(self.stream.add(requests))

    def ready(self):
        return [runner.number for runner in self.supervisor.ready()]


@pytest.fixture
def pool(tmp_path):
    pools = []

    def make(runners=2, spares=0, **options):
        pools.append(Pool(tmp_path, runners, spares, **options))
        return pools[-1]

    yield make
    for each in pools:
        each.stream.close()
        for runner in each.supervisor.runners.values():
            ray.kill(runner.handle)


def test_a_runner_that_dies_while_nothing_is_rolled_out_comes_back_with_the_weights(pool):
    toys = pool()
    toys.kill(1)
    toys.wait_for(1, False)
    assert toys.ready() == [2]
    toys.wait_for(1, True)
    assert toys.ready() == [1, 2] and toys.supervisor.counts.restarts == 1
    assert len(toys.supervisor.take_recoveries()) == 1 and not toys.supervisor.take_recoveries()
    assert {rollout.weights_version for rollout in toys.roll_out(40)} == {1} and toys.stream.take_report().stale == 0


def test_a_process_that_is_starting_is_not_killed_once_more(pool):
    """Ray has begun to start it when its death is noticed; a kill would begin that anew."""
    toys = pool()
    toys.close_gate(1)
    toys.kill(1)
    toys.wait_for(1, False)
    toys.roll_out(40)  # the others continue meanwhile
    toys.open_gate(1)
    toys.wait_for(1, True)
    assert len(toys.starts(1)) == 2


def test_weights_that_were_pushed_while_a_runner_started_are_the_ones_that_it_gets(pool):
    toys = pool()
    toys.close_gate(1)
    toys.kill(1)
    toys.wait_for(1, False)
    toys.push(2)
    toys.open_gate(1)
    toys.wait_for(1, True)
    assert {rollout.weights_version for rollout in toys.roll_out(40)} == {2}


def test_a_runner_waits_for_weights_that_cannot_be_had_yet(pool):
    """While engines sleep, or learners are at work and would have to be asked."""
    asked, given = threading.Event(), []

    def weights():
        asked.set()
        return given[0] if given else None

    toys = pool(weights=weights)
    toys.kill(1)
    assert asked.wait(LONG_S)
    assert toys.ready() == [2]
    given.append((1, {"version": 1}))
    toys.wait_for(1, True)
    assert len(toys.starts(1)) == 2


def test_a_spare_has_the_place_before_the_lost_runner_is_back(pool, caplog):
    toys = pool(runners=2, spares=1)
    toys.wait_for(3, True)
    assert toys.ready() == [1, 2] and toys.supervisor.places == 2
    toys.close_gate(1)
    toys.kill(1)
    toys.wait_for(1, False)
    assert toys.ready() == [2, 3]
    assert {rollout.weights_version for rollout in toys.roll_out(40)} == {1}
    toys.open_gate(1)
    toys.wait_for(1, True)
    assert toys.ready() == [2, 3] and toys.supervisor.runners[1].spare
    toys.push(2)
    toys.kill(2)
    toys.wait_for(2, False)
    assert toys.ready() == [1, 3]
    assert "env runner 3, a spare, replaced env runner 1 after" in caplog.text
    assert "env runner 1 is back after" in caplog.text
    assert len(toys.supervisor.take_recoveries()) == 2


def test_a_spare_that_is_up_later_than_the_loss_takes_the_place_then(pool):
    toys = pool(runners=2, spares=1)
    toys.wait_for(3, True)
    for number in (1, 3):
        toys.close_gate(number)
        toys.kill(number)
        toys.wait_for(number, False)
    toys.open_gate(3)
    toys.wait_for(3, True)
    assert toys.ready() == [2, 3]
    toys.open_gate(1)


def test_a_runner_that_raised_gets_a_new_process(pool):
    """Its old one lives, in an unknown state."""
    toys = pool(runners=1)
    before = toys.pid(1)
    assert len(toys.roll_out(4, "raises")) == 4
    assert toys.pid(1) != before and len(toys.starts(1)) == 2


def test_a_runner_that_was_only_out_of_reach_gets_a_new_process_as_well(pool):
    """It may still hold requests of a round that is over."""
    toys = pool()
    before = toys.pid(1)
    with toys.supervisor.lock:
        toys.supervisor.runners[1].pid = before
        toys.supervisor.lose(toys.supervisor.runners[1], "was out of reach", kill=False)
    toys.wait_for(1, True)
    assert toys.pid(1) != before and len(toys.starts(1)) == 2


def test_wrong_weights_found_between_rollouts_end_the_next_ones(pool):
    toys = pool(weights=lambda: (1, {"version": 7}))
    toys.kill(1)
    toys.wait_for(1, False)
    failed = threading.Event()
    original = toys.supervisor.attend

    def attend():
        original()
        if toys.supervisor._failure:
            failed.set()

    toys.supervisor.attend = attend
    assert failed.wait(LONG_S)
    with pytest.raises(StaleWeights, match="env runner 1 has weights"):
        toys.roll_out(4)


def test_when_all_are_gone_the_next_rollouts_say_so(pool):
    toys = pool()
    gone = threading.Event()
    for runner in toys.supervisor.runners.values():
        ray.kill(runner.handle, no_restart=True)
    original = toys.supervisor.attend

    def attend():
        original()
        if all(runner.state is RunnerState.GONE for runner in toys.supervisor.runners.values()):
            gone.set()

    toys.supervisor.attend = attend
    assert gone.wait(LONG_S)
    with pytest.raises(NoEnvRunnerLeft, match="could not be started"):
        toys.roll_out(4)


def test_a_runner_that_died_and_is_up_again_before_anyone_looked_is_found_by_its_process(pool):
    toys = pool()
    met = threading.Event()
    original = toys.supervisor.attend

    def attend():
        original()
        if toys.supervisor.runners[1].pid is not None and not toys.supervisor.runners[1].calls:
            met.set()

    toys.supervisor.attend = attend
    assert met.wait(LONG_S)
    with toys.supervisor.lock:
        before = toys.supervisor.runners[1].pid
        toys.supervisor.runners[1].calls.clear()  # a ping on its way would be refused
        toys.kill(1)
        while toys.answer(1) in (None, before):
            time.sleep(0.1)
    toys.wait_for(1, False)
    toys.wait_for(1, True)
    assert len(toys.starts(1)) == 2 and toys.supervisor.counts.restarts == 1
    assert len(toys.roll_out(40)) == 40 and toys.stream.take_report().stale == 0


def test_a_stream_whose_thread_has_ended_says_so(pool):
    toys = pool()
    toys.stream.ahead = True
    assert len(toys.roll_out(4)) == 4
    toys.stream.close()
    with pytest.raises(WorkersClosed):
        toys.roll_out(4)


def test_an_error_of_the_streams_thread_reaches_who_waits_and_does_not_end_it(pool):
    toys = pool()
    toys.stream.ahead = True
    original, failed = toys.supervisor.attend, threading.Event()

    def attend():
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        original()

    toys.supervisor.attend = attend
    assert failed.wait(LONG_S)
    with pytest.raises(ZeroDivisionError):
        for _ in range(2):  # the first may have been answered before
            toys.roll_out(4)
    assert len(toys.roll_out(4)) == 4
