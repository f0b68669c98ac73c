"""Show the stages in which engines and learners start: each reports its stage, the driver prints them with seconds.

A start takes seconds for a toy and minutes for a real model, and a constructor answers no calls. So a process writes
its stage down: the driver's own into a table, an actor's into Ray's key-value store, which the driver reads.
"""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self, TextIO

import ray
from ray.experimental import internal_kv as kv
from rich.console import Console
from rich.live import Live
from rich.text import Text

from algorithms.utils.errors import InputError, RunError
from algorithms.utils.progress import duration

READY = "ready"
# Begins the report of a part that did not start; the rest is the error's line.
FAILED = "failed: "
# In a log: how long nothing may be printed while nothing changes.
SECONDS_OF_SILENCE = 15.0
_POLL_S = 0.25
_JOIN_S = 5.0  # of a thread that asks Ray
_here: dict[str, str] = {}


def report_stage(kind: str, stage: str) -> None:
    """Report what this process's engine or learner is doing: `report_stage("engine", "loading weights")`."""
    actor = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    if actor is None:
        _here[kind] = stage
        return
    with contextlib.suppress(Exception):  # the store is Ray's own, and this is for people to look at
        # waits: as in `_keys`
        kv._internal_kv_put(f"{_prefix()}{kind} {actor}".encode(), stage.encode())


@contextlib.contextmanager
def failure_reported(kind: str) -> Iterator[None]:
    """Report an error that is a line for people as the stage of this process."""
    try:
        yield
    except (InputError, RunError) as error:
        report_stage(kind, f"{FAILED}{error}")
        raise


def reported_stages() -> dict[str, str]:
    """Return the last report of each part, by name."""
    stages = dict(_here)
    with contextlib.suppress(Exception):
        for key in _keys():
            # waits: as in `_keys`
            stages[key.decode().removeprefix(_prefix())] = kv._internal_kv_get(key).decode()
    return stages


def forget_stages() -> None:
    """Forget all reports: a new start begins."""
    _here.clear()
    with contextlib.suppress(Exception):
        for key in _keys():
            kv._internal_kv_del(key)  # waits: as in `_keys`


class DidNotStart(RunError):
    """An actor could not start; the message is its own error's line."""


class ShownStart:
    """Prints the stages of a start while its block runs, on a thread: one live line, or lines of a log.

    Args:
        stream: where to write; standard error by default.

    Raises:
        DidNotStart: at the end of a block that failed after an actor had reported an error's line.
    """

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start", daemon=True)
        self._printed, self._printed_at = "", 0.0

    def __enter__(self) -> Self:
        forget_stages()
        self._started = self._printed_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)
        if error is None:
            print(f"started in {self._seconds()}", file=self._stream, flush=True)
        elif isinstance(error, Exception) and not isinstance(error, InputError | RunError):
            # RLlib reports an actor that fails in its constructor in other words, if at all.
            lines = [stage for stage in reported_stages().values() if stage.startswith(FAILED)]
            if lines:
                raise DidNotStart(lines[0].removeprefix(FAILED)) from error

    def _run(self) -> None:
        if not self._stream.isatty():
            while not self._ended.wait(_POLL_S):
                self._print_if_due(describe(reported_stages()))
            return
        with Live(console=Console(file=self._stream, force_terminal=True), transient=True) as live:
            while not self._ended.wait(_POLL_S):
                live.update(Text(f"starting  {describe(reported_stages())}  {self._seconds()}"))

    def _print_if_due(self, text: str) -> None:
        silent = time.monotonic() - self._printed_at >= SECONDS_OF_SILENCE
        if (text and text != self._printed) or silent:
            self._printed, self._printed_at = text, time.monotonic()
            print(f"starting  {text or 'Ray actors'}  {self._seconds()}", file=self._stream, flush=True)

    def _seconds(self) -> str:
        return duration(time.monotonic() - self._started)


def describe(stages: Mapping[str, str]) -> str:
    """Write stages in a line: `engines: 2 ready, 1 loading weights; learner: ready`."""
    kinds: dict[str, list[str]] = {}
    for who, stage in sorted(stages.items()):
        kinds.setdefault(who.partition(" ")[0], []).append(stage)
    texts = []
    for kind, each in kinds.items():
        counts = Counter(each)
        alone = len(each) == 1
        listed = ", ".join(stage if alone else f"{count} {stage}" for stage, count in counts.most_common())
        texts.append(f"{kind}{'' if alone else 's'}: {listed}")
    return "; ".join(texts)


def _keys() -> list[bytes]:
    # waits: the run ends when Ray does not answer, see algorithms.train.ray_watch
    return kv._internal_kv_list(_prefix().encode()) if ray.is_initialized() else []


def _prefix() -> str:
    """Stages of this job: others may share the cluster."""
    return f"r3_grpo:start:{ray.get_runtime_context().get_job_id()}:"
