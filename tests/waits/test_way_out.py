"""A signal that comes at any line of the way out ends it, though Ray's own way out hangs."""

import os
import subprocess
import sys
from pathlib import Path

# A child for each line that runs between the message and Ray's shutdown; it sends itself a signal there.
SWEEP = """
import os, signal, sys, time, types
from algorithms.train import main, stopping

FILES = {main.__file__, stopping.__file__}

def end_of(line):
    sent = False

    def trace(frame, event, argument):
        nonlocal line, sent
        if frame.f_code.co_filename in FILES and event == "line":
            line -= 1
            if line == 0:
                sent = True
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    def hang():
        os._exit(3) if not sent else time.sleep(1000)

    def command(*_):
        stopping.interrupt_on_sigterm()
        sys.settrace(trace)
        return 130

    sys.modules["ray"] = types.SimpleNamespace(shutdown=hang)
    main.main = command
    stopping.SHUTDOWN_S = 1000
    main.run_and_leave("grpo", [])

line = 0
while True:
    line += 1
    if not (child := os.fork()):
        end_of(line)
    deadline = time.monotonic() + 200
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit(f"a signal at line {line} of them was lost")
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(ended[1])
    if code == 3:  # no such line
        print(line - 1)
        break
    if code != 130:
        sys.exit(f"a signal at line {line} of them ended it with {code}")
"""


def test_a_signal_at_any_line_of_the_way_out_ends_it():
    swept = subprocess.run(
        [sys.executable, "-c", SWEEP],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert swept.returncode == 0, swept.stderr
    assert int(swept.stdout) > 10
