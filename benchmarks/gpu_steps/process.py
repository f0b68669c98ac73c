"""Run a step in a process of its own, with a time limit, and leave nothing of it behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.step import Job, Step

try:
    import psutil
except ImportError:  # the group of the step's process is ended all the same, and Ray's daemons end with their driver
    psutil = None

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.5
# What a step's own children may take to end after it.
LEAVING_S = 15.0

OnTick = Callable[[float, str], None]


def run_step(step: Step, job: Job, log: Path, on_tick: OnTick = lambda seconds, line: None) -> dict[str, Any]:
    """Run a step to its end or its limit.

    Args:
        step: to run.
        job: for it; the step's own options are added.
        log: file for everything that the step prints.
        on_tick: called twice a second with the seconds so far and the last line of the log.

    Returns:
        `status` (`ok`, `wrong`, `failed`, `timed out` or `skipped`), `summary`, `seconds`, and where the step got that
        far `figures` and `wrong`.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "job.json", Path(folder) / "result.json"
        given.write_text(json.dumps({"target": step.target, "job": asdict(job) | {"options": dict(step.options)}}))
        with log.open("w", encoding="utf-8") as stream:
            command = [sys.executable, "-m", "benchmarks.gpu_steps.child", str(given), str(result)]
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, env=_environment(step), start_new_session=True
            )
        family = _Family(process.pid)
        try:
            timed_out = _watch(process, step.limit_s, started, family, lambda s: on_tick(s, last_line(log)))
        finally:
            family.end(process)
        seconds = time.monotonic() - started
        if result.exists():  # also when it hung only after its work was done
            answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        elif timed_out:
            answer = {"status": "timed out", "summary": f"no end within {step.limit_s:g} s: {last_line(log)}"}
        else:
            answer = {"status": "failed", "summary": f"{_ending(process.returncode)}: {last_line(log)}"}
    return answer | {"seconds": seconds}


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, cut to 160 characters."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        text = stream.read().decode("utf-8", "replace")
    return next((line.strip()[:160] for line in reversed(text.splitlines()) if line.strip()), "")


def _environment(step: Step) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0"}
    # The log is a file: what vLLM and Ray's workers say belongs there, and shows how far a start has come.
    talkative = {"VLLM_LOGGING_LEVEL": "INFO", "R3_VERBOSE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **offline, **talkative, "PYTHONPATH": path, **step.environment}


def _watch(
    process: "subprocess.Popen[bytes]", limit_s: float, started: float, family: "_Family", tick: Callable[[float], None]
) -> bool:
    """Wait for the end; return whether the limit came first."""
    while True:
        seconds = time.monotonic() - started
        try:
            process.wait(min(POLL_S, max(0.0, limit_s - seconds)))
            return False
        except subprocess.TimeoutExpired:
            family.look()
            seconds = time.monotonic() - started
            tick(seconds)
            if seconds >= limit_s:
                return True


def _ending(code: int) -> str:
    return f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class _Family:
    """A process and all its descendants, Ray's daemons included, which have sessions of their own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: Mapping[int, Any] = {}

    def look(self) -> None:
        """Note the processes that run now."""
        if psutil is None:
            return
        try:
            children = psutil.Process(self._pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self._known = {**self._known, **{child.pid: child for child in children}}

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill what still runs; the children of a process that ended by itself get some seconds to end too."""
        self.look()
        if process.poll() is None:
            os.killpg(self._pid, signal.SIGKILL)
            process.wait()
        else:
            self._wait(LEAVING_S)
        for child in self._alive():
            try:
                child.kill()  # psutil compares the time of its start: no other process of the same number
            except psutil.NoSuchProcess:
                continue
        self._wait(LEAVING_S)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _alive(self) -> list[Any]:
        """Return those that still run; zombies do not count."""
        return [child for child in self._known.values() if _runs(child)]


def _runs(process: Any) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
