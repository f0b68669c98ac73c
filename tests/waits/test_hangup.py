"""SIGHUP ends a run as SIGTERM does, unless it was ignored at the start."""

import os
import signal
import subprocess
import sys
import time

import pytest

from algorithms.train.run_directory import checkpoint_steps
from algorithms.train.stopping import InterruptBetweenSteps, interrupt_on_sigterm

LIMIT_S = 120


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def at_the_start(request):
    """What SIGHUP did when the process began."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, request.param)
    yield request.param
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_hangup_before_the_steps_interrupts(at_the_start):
    interrupt_on_sigterm()
    if at_the_start is signal.SIG_IGN:
        os.kill(os.getpid(), signal.SIGHUP)
        return
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_hangup_between_steps_interrupts_and_is_forgotten_afterwards(at_the_start):
    with InterruptBetweenSteps() as interrupt:
        if at_the_start is signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
        else:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is at_the_start


LOST = """
import os, signal, time
from algorithms.train.stopping import interrupt_on_sigterm

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

interrupt_on_sigterm()
try:
    Freed()
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_meets_a_destructor_is_not_lost():
    command = [sys.executable, "-c", LOST]
    assert subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S).stdout == "interrupted\n"


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_a_run_with_a_checkpoint_of_its_last_step(start):
    """Ray's processes get the signal as well, and the checkpoint needs them."""
    run = start()
    os.killpg(run.process.pid, signal.SIGHUP)
    code, errors, _ = run.end()
    assert code == 130, errors
    steps = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert checkpoint_steps(run.folder / "checkpoints")[-1] == len(steps)
    assert not run.left()


SUPERVISOR = """
import signal, sys
from algorithms.train.restarts import supervise

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where these tests ignore it
sys.exit(supervise([sys.executable, "-c"], [sys.argv[1]], 3))
"""
STOPPED = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, lambda *_: sys.exit(130))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1000)
"""


def test_a_supervisor_passes_a_hangup_on_also_to_a_run_that_is_stopped():
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, STOPPED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # it stops
    process.send_signal(signal.SIGHUP)
    assert process.wait(LIMIT_S) == 130


AT_ONCE = """
import sys
from algorithms.train.restarts import _send, _wait
import signal, subprocess

for _ in range(100):
    child = subprocess.Popen(["sleep", "1000"])
    _send(child, signal.SIGTERM)
    _send(child, signal.SIGCONT)
    assert _wait(child) == -signal.SIGTERM
"""


@pytest.mark.parametrize("before", ["", "import os\ndel os.waitid\n"], ids=["", "on macOS before Python 3.13"])
def test_a_child_that_a_signal_ended_is_found_by_whoever_waits_for_it(before):
    subprocess.run([sys.executable, "-c", before + AT_ONCE], check=True, timeout=LIMIT_S)
