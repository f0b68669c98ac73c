"""A chat template that loops for ever ends a check, and the start of a run, in one line."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from algorithms.preflight import chat_template
from r3env import assets

R3 = ("-m", "algorithms.r3_grpo")
LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3


@pytest.fixture
def model(tmp_path):
    """A function that makes a model with this put before its template."""

    def make(before: str) -> Path:
        folder = Path(shutil.copytree(Path(assets.__file__).parent / "tiny", tmp_path / "model"))
        template = folder / "chat_template.jinja"
        template.write_text(before + template.read_text())
        return folder

    return make


@pytest.mark.parametrize(
    ("before", "arguments"),
    [(LOOP, ["--check"]), ("{{ 9 ** (9 ** 9) }}", []), ("{{ 'a' * 10 ** 12 }}", ["--check"])],
    ids=["a loop, at a check", "one long operation, at a start", "a large text, at a check"],
)
def test_it_is_named_in_one_line(start, model, before, arguments, tmp_path):
    settings = [f"rl_module.model={model(before)}", "environment.id=r3env/Math-v0", f"run.dir={tmp_path / 'runs'}"]
    settings += ["environment.data=embedded:train", "env_runners.max_response_tokens=32"]
    done = start('"$@"', *R3, *settings, *arguments)
    assert done.returncode == 2, done.stderr
    line = done.stderr.decode().splitlines()[-1]
    assert line.startswith("error: rl_module.model: the chat template of ") and "chat_template.jinja" in line
    assert not (tmp_path / "runs").exists()


def test_a_fork_that_is_stopped_is_killed():
    process = os.fork()
    if process == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert chat_template._ends(process, 0.2) is False
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize(("number", "fits"), [(signal.SIGXCPU, False), (signal.SIGSEGV, True), (signal.SIGKILL, True)])
def test_only_what_computes_too_long_is_refused(number, fits):
    process = os.fork()
    if process == 0:
        signal.pause()
    os.kill(process, number)
    assert chat_template._ends(process, 60.0) is fits


def test_a_fork_that_the_system_reaps_has_ended():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = os.fork()
        if process == 0:
            os._exit(0)
        assert chat_template._ends(process, 60.0)
    finally:
        signal.signal(signal.SIGCHLD, before)
