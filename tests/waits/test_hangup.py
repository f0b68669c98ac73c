"""SIGHUP ends a run as SIGTERM does, unless it was ignored at the start."""

import os
import signal
import subprocess
import sys
import time

import pytest

from algorithms.train.interrupts import InterruptBetweenSteps, interrupt_on_sigterm

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


SUPERVISOR = """
import sys
from algorithms.train.supervisor import supervise

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
