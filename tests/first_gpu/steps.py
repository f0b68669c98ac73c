"""Steps that misbehave, for the tests of how `benchmarks.first_gpu` runs them."""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_steps.step import CannotRun, Outcome


def works(job):
    print("a line in the log")
    with (Path(job.options["folder"]) / "runs").open("a") as file:
        file.write("x")
    return Outcome(f"{job.size} on {job.device}", {"answer": 42})


def finds_something_wrong(job):
    return Outcome("measured", {"answer": 41}, ["41 is not 42"])


def raises(job):
    raise ValueError("a mistake\nwith a second line")


def crashes(job):
    print("the last words", flush=True)
    os.abort()


def lacks_a_module(job):
    import a_module_that_nobody_has  # noqa: F401


def cannot_run(job):
    raise CannotRun("the moon is full")


def hangs(job):
    """Hang with a child of a session of its own, as Ray's daemons have."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(command, start_new_session=True)
    (Path(job.options["folder"]) / "pids").write_text(f"{os.getpid()} {child.pid}")
    print("still at it", flush=True)
    time.sleep(600)
