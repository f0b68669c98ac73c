"""End a run with a line where Ray would not: its control process no longer answers, or it ends the process itself."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import ray
from ray.experimental import internal_kv as kv

from algorithms.config.base import BaseConfig
from algorithms.learner.group import LearnerDied
from algorithms.preflight.ray_session import needs_ray, start_ray
from algorithms.train.exit_codes import ERROR, FAILED, report_to_supervisor
from algorithms.train.run_directory import RunDirectory, checkpoint_path, checkpoint_steps
from algorithms.train.stopping import end_now, interrupt_on_sigterm
from algorithms.utils.errors import InputError, RunError

LOOK_S, ANSWER_S = 2.0, 5
# Ray aborts 60 s after its control process has died: before that, a checkpoint has to be written.
SILENT_S, SAVING_S = 30.0, 20.0
STARTING_S = 180.0
SPEAKER_S = 10.0


class RayLost(RunError):
    """Ray's control process does not answer; the run can resume from its last checkpoint."""


class RayWatch:
    """While open, ends a process whose Ray does not answer: as a SIGTERM would, with a checkpoint, else without.

    It names the last checkpoint also in the line of a learner that is lost. And it has a line printed if the process
    ends meanwhile without one.

    Args:
        fix: how to continue.
        run: whose last checkpoint the line names; None: there are no checkpoints.
        starting: whether Ray starts now; else `start_ray` says when.
    """

    def __init__(self, fix: str, run: RunDirectory | None = None, *, starting: bool = False) -> None:
        self._fix, self._run_directory, self._starting = fix, run, starting
        self._started = self._lost = False
        self._last_words: LastWords | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="Ray watch", daemon=True)

    def __enter__(self) -> Self:
        self._expect_an_end()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._last_words is not None:
            self._last_words.withdraw()
        if isinstance(error, LearnerDied):
            raise type(error)("; ".join([str(error), *self._last_checkpoint()])) from error
        defect = isinstance(error, Exception) and not isinstance(error, InputError | RunError)
        if error is not None and (self._lost or (defect and ray.is_initialized() and not _answers())):
            raise RayLost(self._line()) from error

    def start_ray(self, config: BaseConfig) -> None:
        """Call `start_interruptible_ray`; where it starts Ray, an answer is waited for from now on."""
        self._starting = needs_ray(config)
        self._expect_an_end()
        start_interruptible_ray(config)

    def _expect_an_end(self) -> None:
        if self._starting and self._last_words is None:
            self._last_words = LastWords(
                "Ray ended this process without a word, as where its raylet died, or the system killed it; fix: free "
                f"memory, and space in /dev/shm, then {self._fix}"
            )

    def _run(self) -> None:
        silent_s, looked_at = 0.0, time.monotonic()
        while not self._closed.wait(LOOK_S):
            self._started = self._started or ray.is_initialized()
            answers, now = _answers(), time.monotonic()
            # This process may have been stopped as well: its own absence is no silence.
            passed_s, looked_at = min(now - looked_at, 1.5 * (LOOK_S + ANSWER_S)), now
            silent_s = 0.0 if answers or not (self._starting or self._started) else silent_s + passed_s
            if self._started and silent_s >= SILENT_S and not self._lost:
                self._lost = True
                os.kill(os.getpid(), signal.SIGTERM)
            elif silent_s >= (SILENT_S + SAVING_S if self._started else STARTING_S) and not self._closed.is_set():
                line = f"error: {self._line()}"
                report_to_supervisor(ERROR, line)
                print(line, file=sys.stderr, flush=True)
                end_now(FAILED)

    def _line(self) -> str:
        fix = "; ".join([self._fix, *self._last_checkpoint()])
        if not self._started:
            return f"Ray did not start within {STARTING_S:g} s; fix: {fix}"
        return f"Ray's control process does not answer: it died or is stopped; fix: {fix}"

    def _last_checkpoint(self) -> list[str]:
        if self._run_directory is None:
            return []
        folder = self._run_directory.checkpoints_folder
        steps = checkpoint_steps(folder)
        return [f"the last checkpoint: {checkpoint_path(folder, steps[-1])}" if steps else "no checkpoint yet"]


class LastWords:
    """An error line that another process prints if this one ends before it withdraws them.

    Ray's compiled code ends a process at once, and in silence, where the raylet dies that it wants something from.

    Args:
        text: the line.
    """

    def __init__(self, text: str) -> None:
        command = ["sh", "-c", 'read -r _ || printf "error: %s\\n" "$1" >&2', "sh", text]
        # A session of its own: Ctrl-C is this process's alone.
        self._speaker = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def withdraw(self) -> None:
        """Take them back."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # somebody killed it
            self._speaker.communicate(b"\n", timeout=SPEAKER_S)
        self._speaker.kill()


def start_interruptible_ray(config: BaseConfig) -> bool:
    """Call `start_ray`, after which a SIGTERM interrupts again: with Ray's own handler the process would abort."""
    joined = start_ray(config)
    interrupt_on_sigterm()  # engines may take minutes to start
    return joined


def _answers() -> bool:
    try:
        kv.internal_kv_get_gcs_client().internal_kv_get(b"r3_grpo", None, ANSWER_S)
    except Exception:
        return False
    return ray.is_initialized()
