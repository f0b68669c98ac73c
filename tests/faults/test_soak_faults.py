"""The faults of a soak strike what they say, and the checks of damaged files find what is wrong."""

import http.server
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from algorithms.train.manifest import write_manifest
from benchmarks.soaking import faults
from benchmarks.soaking.command import TRAIN, Command
from benchmarks.soaking.damage import Damage, damage_and_resume
from benchmarks.soaking.faults import Running, endpoints, explained, possible
from benchmarks.soaking.kinds import Kind

LIMIT_S = 600
WAITS = f"import time; print(flush=True); time.sleep({LIMIT_S})"


@pytest.fixture
def running(tmp_path):
    """A process with the title of a learner, as the run's only one."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, faults.LEARNER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    process.stdout.readline()
    yield Running(process, tmp_path, random.Random(0))
    process.kill()
    process.communicate(timeout=LIMIT_S)


def test_a_process_that_is_paused_goes_on(running, monkeypatch):
    pauses = []
    process = psutil.Process(running.process.pid)
    monkeypatch.setattr(
        faults.time, "sleep", lambda seconds: pauses.append(comes(lambda: process.status() == psutil.STATUS_STOPPED))
    )
    faults.pause(running)
    assert pauses == [True] and running.process.poll() is None
    assert comes(lambda: process.status() != psutil.STATUS_STOPPED)


def comes(state):
    """Wait until a process is in a state: a signal acts a little later than it is sent."""
    until = time.monotonic() + LIMIT_S
    while not state() and time.monotonic() < until:
        threading.Event().wait(0.01)
    return state()


def test_a_run_that_waits_for_a_stopped_learner_for_ever_is_killed_and_that_is_an_error(running, monkeypatch):
    monkeypatch.setattr(faults, "ENDING_S", 0.1)
    faults.stop_learner(running)
    assert running.process.wait(timeout=LIMIT_S) == -signal.SIGKILL
    assert not explained(-signal.SIGKILL, "", ["learner SIGSTOP"])


def test_a_run_without_the_process_is_left_alone(running):
    faults.stop_control(running)
    faults.stop_grader(running)
    assert running.process.poll() is None


def test_endpoints_are_ports_that_answer_http_one():
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        try:
            found = endpoints([psutil.Process()])
        finally:
            server.shutdown()
            server.server_close()
        assert server.server_port in found and mute.getsockname()[1] not in found


def test_each_kind_has_the_faults_that_can_strike_it():
    alone, tools = Kind("a", "sums", "numbers"), Kind("b", "tools", "files", runners=True)
    assert not {"learner SIGSTOP", "grader SIGSTOP", "hostile connections"} & possible(True, alone).keys()
    assert {"Ray SIGSTOP", "any SIGSTOP, SIGCONT"} <= possible(True, alone).keys()
    assert {"learner SIGSTOP", "grader SIGSTOP"} <= possible(True, tools).keys()
    assert "hostile connections" in possible(True, Kind("c", "agents", "files"))


class Script(Command):
    """Python code in the command's place."""

    code = ""

    def arguments(self):
        return ["-c", self.code]


@pytest.fixture
def command(tmp_path):
    """A command whose run has files, and three checkpoints."""
    command = Script(tmp_path / "runs", 3)
    run = command.folder / "soaked"
    run.mkdir(parents=True)
    for name in ("config.yaml", "evaluation.json"):
        (run / name).write_text("0123456789")
    for step in (1, 2, 3):
        checkpoint = run / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(f"0123456789{step}")
        write_manifest(checkpoint)
    return command


def refuses(run, change="pass"):
    """Code that refuses a resume with a line that fits whatever was damaged."""
    names = "config.yaml evaluation.json state.json manifest.json"
    ways = f"--resume {run}/checkpoints/step_000002 or algorithms.train.rebuild {run}"
    return f"import sys; {change}; print('error: {names}; fix: {ways}', file=sys.stderr); sys.exit(2)"


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_that_is_refused_is_put_back_or_the_checkpoint_before_is_resumed(command, monkeypatch, seed):
    run = command.run_directory()
    whole = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    monkeypatch.setattr(Script, "code", refuses(run))
    found = damage_and_resume(command, random.Random(seed))
    assert found.what and (found.trouble is None or "of the rebuild" in found.trouble)
    unlike = [path for path, content in whole.items() if not path.exists() or path.read_bytes() != content]
    if found.checkpoint:
        assert len(unlike) == 1 and unlike[0].parent == found.checkpoint
        assert found.resumed() == run / "checkpoints" / "step_000002"
        found.checkpoint.rename(run / "checkpoints" / ".step_000003.gone")
    else:
        assert all(path.name == "config.yaml" and ": comment" in found.what for path in unlike)
    assert found.resumed() is None


@pytest.mark.parametrize(
    "code, said",
    [
        ("pass", "exit code 0: "),
        ("import sys; sys.exit('error: a traceback')", "exit code 1: error: a traceback"),
        ("import sys; print('error: broken', file=sys.stderr); sys.exit(2)", "exit code 2: error: broken"),
        (None, "a refused resume changed files"),
    ],
)
def test_a_damaged_file_that_is_believed_or_refused_without_a_way_out_is_found(command, monkeypatch, code, said):
    run = command.run_directory()
    change = f"open({str(run / 'checkpoints' / 'step_000001' / 'state.json')!r}, 'w').close()"
    monkeypatch.setattr(Script, "code", code or refuses(run, change))
    found = damage_and_resume(command, random.Random(3))
    assert found.trouble and found.trouble.endswith(f": {said}")


def test_a_run_that_has_not_begun_is_not_damaged(tmp_path):
    assert damage_and_resume(Script(tmp_path, 3), random.Random(0)) == Damage()


def test_the_checkpoint_that_is_named_is_the_one_that_is_resumed(command, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda arguments, **_: started.append(arguments))
    command.start(resume=Path("step_000002"))
    assert started[0][-4:] == [*TRAIN, "--resume", "step_000002"]
