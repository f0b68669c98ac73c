"""Runs whose limits are short, as a user starts them, and the processes that they consist of."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.own_ray import own_ray

LIMIT_S = 400  # of what takes seconds on a machine that does nothing else
SMALL = [
    "run.steps=60",
    "run.checkpoint_every=1",
    "training.queries_per_step=4",
    "training.group_size=4",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=2",
    "learners.num_learners=1",
]
# Makes some of the product's limits short once it is told to: a start takes as long as it takes.
SHORTEN = """
import importlib, json, os, signal, sys

def shorten(*_):
    for module, name, value in json.loads(os.environ["SHORT_LIMITS"]):
        setattr(importlib.import_module(module), name, value)
    open(os.environ["SHORTENED"], "w").close()

signal.signal(signal.SIGUSR1, shorten)
"""
TRAINING = f"""{SHORTEN}
from algorithms.train.main import run_and_leave

run_and_leave("grpo", sys.argv[1:])
"""


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with own_ray():
        yield


class Run:
    """A training that has made its first checkpoint."""

    def __init__(self, folder: Path, limits: Sequence[tuple[str, str, float]]) -> None:
        self.folder = folder / "run"
        self.begin(folder / "shortened", limits, TRAINING, *SMALL, f"run.dir={folder}", "run.name=run")
        self._wait_for(self.folder / "checkpoints" / "step_000001" / "manifest.json")
        self.shorten()
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def begin(self, shortened: Path, limits: Sequence[tuple[str, str, float]], *script: str, **variables: str) -> None:
        """Start a script with its arguments, whose limits are short once `shortened` is there."""
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        variables |= {"SHORT_LIMITS": json.dumps(limits), "SHORTENED": str(shortened)}
        self.shortened = shortened
        self.process = subprocess.Popen(
            [sys.executable, "-c", *script],
            env=surroundings | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def shorten(self) -> None:
        """Make the limits short from now on."""
        self.process.send_signal(signal.SIGUSR1)
        self._wait_for(self.shortened)

    def _wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"no {path}: {self.process.communicate()}")
            time.sleep(0.05)

    def child(self, title: str) -> psutil.Process:
        """Return the child process whose command line holds this."""
        (found,) = [child for child in self.family if title in _title(child)]
        return found

    def end(self) -> tuple[int, str, float]:
        """Wait until the run has ended; return its code, what it said, and how long that took."""
        began = time.monotonic()
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors, time.monotonic() - began

    def left(self) -> list[psutil.Process]:
        """Return those of its processes that have not ended a while after it."""
        return psutil.wait_procs(self.family, timeout=60)[1]

    def clean(self) -> None:
        """Kill what is left."""
        own = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        for process in [*self.family, *own]:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def begin(*limits: tuple[str, str, float]) -> Run:
        runs.append(Run(tmp_path, limits))
        return runs[-1]

    yield begin
    for run in runs:
        run.clean()
