"""What counts as silence of a process whose beats have stopped."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
import ray

from algorithms.utils import heartbeat


@pytest.fixture
def at_once(ray_session, monkeypatch):
    """The least silence is too much, and a busy machine is waited for until it says whether a process computes."""
    monkeypatch.setattr(heartbeat, "SILENT_S", 0.0)
    monkeypatch.setattr(heartbeat, "ANSWER_S", 600.0)


@pytest.fixture
def idle(at_once):
    """A process that does nothing."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()


def pulse_and_beat(pid: int, name: str):
    """The pulse of an actor that is called so, after its first beat; and what gives its next one."""
    key, who = heartbeat._key(name), {"node": ray.get_runtime_context().get_node_id(), "pid": pid}
    heartbeat._beat(key, who, 0)
    pulse = heartbeat.Pulse(SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: name)))
    assert not pulse.is_gone()  # the first beat that it sees
    return pulse, lambda: heartbeat._beat(key, who, 1)


@pytest.mark.slow
def test_an_idle_process_without_beats_is_gone(idle):
    pulse, _ = pulse_and_beat(idle, "idle")
    assert pulse.is_gone()


@pytest.mark.slow
def test_a_process_whose_beat_comes_while_its_machine_is_asked_is_not_gone(idle, monkeypatch):
    pulse, beat = pulse_and_beat(idle, "late")
    asked = heartbeat._computes

    def ended_meanwhile(**who) -> bool | None:
        beat()
        return asked(**who)

    monkeypatch.setattr(heartbeat, "_computes", ended_meanwhile)
    assert not pulse.is_gone()
    monkeypatch.setattr(heartbeat, "_computes", asked)
    assert pulse.is_gone()


@pytest.mark.slow
def test_a_process_that_computes_is_not_gone(at_once):
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        pulse, _ = pulse_and_beat(busy.pid, "busy")
        assert not pulse.is_gone()
        os.kill(busy.pid, signal.SIGSTOP)
        assert pulse.is_gone()
    finally:
        busy.kill()
        busy.wait()
