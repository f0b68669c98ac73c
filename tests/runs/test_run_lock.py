"""Two processes never train in the same run directory."""

import signal
import subprocess
import sys

import pytest

from algorithms.train.run_directory import RunIsBusy, lock

HOLDER = """
import sys, time
from pathlib import Path
from algorithms.train.run_directory import lock
held = lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunIsBusy, match=f"process {holder.pid} on .* trains here"):
        lock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    lock(tmp_path).close()


def test_it_can_be_taken_again_once_it_is_closed(tmp_path):
    lock(tmp_path).close()
    lock(tmp_path).close()
