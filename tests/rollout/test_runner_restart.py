"""An engine that comes back while learners use its GPU sleeps until there are weights for it. No Ray, no GPU."""

import pytest

from algorithms.rollout import lost_runners
from algorithms.rollout.lost_runners import RunnerRestart
from algorithms.rollout.remote_runner import RemoteRunner

OLD, NEW, VERSION = 10, 11, 3


class Method:
    """A method of an actor, whose calls are noted."""

    def __init__(self, name, answer, noted):
        self.name, self.answer, self.noted = name, answer, noted

    def remote(self, *arguments):
        self.noted.append(self.name)
        return self


class Handle:
    def __init__(self):
        self.noted = []
        self.get_pid = Method("get_pid", NEW, self.noted)
        self.sleep_engine = Method("sleep_engine", None, self.noted)
        self.set_state = Method("set_state", VERSION, self.noted)


@pytest.fixture
def handle(monkeypatch):
    monkeypatch.setattr(lost_runners.ray, "get", lambda call: call.answer)
    return Handle()


def versions(coming, weights, steps):
    """What a runner confirms, step by step."""
    found = []
    for _ in range(steps):
        coming.proceed(lambda: weights)
        found.append(coming.take_answer() if coming.call is not None else None)
    return found


@pytest.mark.parametrize("sleeps", [True, False])
def test_an_engine_that_comes_back_while_learners_work_sleeps_once_and_then_gets_weights(handle, sleeps):
    coming = RunnerRestart(RemoteRunner(1, handle), lambda handle: None, 60.0, True, OLD, sleeps)
    assert versions(coming, None, 4) == [None] * 4
    assert handle.noted == ["get_pid"] + ["sleep_engine"] * sleeps
    assert versions(coming, (VERSION, {}), 1) == [VERSION]
    assert handle.noted[-1] == "set_state"


def test_an_engine_that_comes_back_while_learners_wait_stays_awake(handle):
    coming = RunnerRestart(RemoteRunner(1, handle), lambda handle: None, 60.0, True, OLD, True)
    assert versions(coming, (VERSION, {}), 2) == [None, VERSION]
    assert handle.noted == ["get_pid", "set_state"]


def test_a_process_that_died_asleep_sleeps_again_in_its_next_one(handle):
    coming = RunnerRestart(RemoteRunner(1, handle), lambda handle: None, 60.0, True, OLD, True)
    versions(coming, None, 3)
    coming._wait_for_process(lost_runners.RayError())
    coming._retry_at, handle.get_pid.answer = 0.0, NEW + 1
    versions(coming, None, 2)
    assert handle.noted == ["get_pid", "sleep_engine"] * 2
