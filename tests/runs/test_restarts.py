"""When a run that died is started again: the decision, and the supervisor's processes with a small run of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.train import main as command
from algorithms.train.main import begun_run, wanted_restarts
from algorithms.train.restarts import FIRST_PAUSE_S, LONGEST_PAUSE_S, Ending, Restarts

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL


def pauses(most: int, checkpoints: list[int]) -> list[float | None]:
    """What follows deaths with these newest checkpoints."""
    restarts = Restarts(most)
    return [restarts.after(Ending(KILLED, checkpoint)) for checkpoint in checkpoints]


@pytest.mark.parametrize("code", [1, 130, KILLED, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGABRT])
def test_what_ends_the_run_alone_is_worth_a_restart(code):
    assert Ending(code).died


@pytest.mark.parametrize("code", [0, 2])
def test_a_run_that_is_done_or_has_wrong_input_is_not_restarted(code):
    assert not Ending(code).died


@pytest.mark.parametrize("code", [0, 1, 2, 130, KILLED, -signal.SIGTERM])
def test_nothing_is_restarted_after_an_order_to_stop(code):
    assert not Ending(code, stopped=True).died


def test_a_run_is_given_up_after_so_many_restarts_without_a_new_checkpoint():
    assert [pause is not None for pause in pauses(2, [0, 0, 0])] == [True, True, False]
    assert [pause is not None for pause in pauses(1, [50, 50])] == [True, False]


def test_a_new_checkpoint_begins_the_count_again():
    assert None not in pauses(1, [0, 10, 20, 30, 40])
    assert [pause is not None for pause in pauses(2, [0, 0, 10, 10, 10])] == [True, True, True, True, False]


def test_pauses_double_without_progress_and_have_a_limit():
    waits = pauses(20, [0] * 20)
    assert waits[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert waits[-1] == LONGEST_PAUSE_S
    assert pauses(20, [0, 0, 0, 10])[-1] == FIRST_PAUSE_S


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Ending(KILLED), "killed by SIGKILL"),
        (Ending(KILLED, out_of_memory=True), "killed by SIGKILL, as memory ran out"),
        (Ending(-signal.SIGSEGV, out_of_memory=True), "killed by SIGSEGV"),
        (Ending(-40), "killed by signal 40"),
        (Ending(1, error="error: learner 0 died"), "error: learner 0 died"),
        (Ending(1), "exit code 1"),
        (Ending(130), "interrupted by a signal that its supervisor did not get"),
    ],
)
def test_a_line_says_why_and_from_where(ending, reason):
    restarts = Restarts(1)
    restarts.after(ending)
    assert restarts.line(ending, "runs/a", 5.0) == f"restart 1: {reason}; resuming runs/a after step 0 in 5 s"
    assert restarts.line(ending, None, 5.0) == f"restart 1: {reason}; starting again in 5 s"


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "base.yaml").write_text("run: {restarts: 4}\n")
    (tmp_path / "top.yaml").write_text("base: base.yaml\nrun: {steps: 3}\n")
    (tmp_path / "none.yaml").write_text("run: {restarts: 0}\n")
    (tmp_path / "broken.yaml").write_text("run: [\n")
    (tmp_path / "runs" / "a" / "checkpoints" / "step_000001").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").write_text("algorithm: grpo\nrun: {restarts: 2}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "overrides", "resumed", "wanted"),
    [
        ([], [], None, 0),
        ([], ["run.restarts=3"], None, 3),
        (["top.yaml"], [], None, 4),
        (["top.yaml", "none.yaml"], [], None, 0),
        (["top.yaml"], ["run.steps=9", "run.restarts=1", "run.restarts=2"], None, 2),
        ([], [], "runs/a", 2),
        ([], [], "runs/a/checkpoints/step_000001", 2),
        ([], ["run.restarts=0"], "runs/a", 0),
    ],
)
def test_the_setting_is_read_as_the_run_will_read_it(files, names, overrides, resumed, wanted):
    paths = [str(files / name) for name in names]
    assert wanted_restarts(paths, overrides, str(files / resumed) if resumed else None) == wanted


@pytest.mark.parametrize("overrides", [["run.restarts=many"], ["run.restarts=-1"], ["run.restarts=["]])
def test_wrong_input_is_left_to_the_run_to_refuse(files, overrides):
    assert wanted_restarts([], overrides, None) == 0
    assert wanted_restarts([str(files / "broken.yaml")], ["run.restarts=3"], None) == 0
    assert wanted_restarts([], ["run.restarts=3"], str(files / "no_run")) == 0


def test_a_run_is_continued_if_it_was_begun_and_found_by_its_name(files):
    where = f"run.dir={files / 'runs'}"
    assert begun_run([], [where, "run.name=a"]) == files / "runs" / "a"
    assert begun_run([], [where, "run.name=b"]) is None
    (files / "named.yaml").write_text(f"run: {{dir: {files / 'runs'}, name: a}}\n")
    assert begun_run([str(files / "named.yaml")], []) == files / "runs" / "a"
    with pytest.raises(ConfigError, match=r"^run\.name: .*fix: "):
        begun_run([], [where])


@pytest.mark.parametrize("restarts", [0, 2])
def test_the_run_that_is_continued_is_named_once(files, restarts, monkeypatch, capsys):
    """By the run itself, which refuses this one: another algorithm trained it."""
    (files / "runs" / "a" / "config.yaml").write_text(f"algorithm: r3_grpo\nrun: {{restarts: {restarts}}}\n")
    arguments = ["--continue", f"run.dir={files / 'runs'}", "run.name=a"]
    monkeypatch.setattr(command, "supervise", lambda _, argv, most: command.main("grpo", argv))
    assert command._run_or_supervise("grpo", arguments) == 2
    captured = capsys.readouterr()
    assert captured.out.count("--continue: resuming") == 1 and "is a run of r3_grpo" in captured.err


WITHOUT_RAY = """
import sys
from algorithms.train import main

main.wanted_restarts(["configs/dapo.yaml"], [], None)
print([name for name in ("ray", "torch", "vllm", "pandas") if name in sys.modules])
"""


def test_the_supervisor_imports_neither_ray_nor_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_RAY], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# A run of its own: it notes how it was started, reports its directory, and does what the next word of `script` says.
RUN = """
import os, pathlib, signal, subprocess, sys, time
from algorithms.train import exit_codes

exit_codes.end_with_supervisor()
here = pathlib.Path(sys.argv[1])
with (here / "starts").open("a") as starts:
    print(*sys.argv[2:], sep=" ", file=starts)
number = len((here / "starts").read_text().splitlines())
words = (here / "script").read_text().split()
for word in words[number - 1].split(","):
    if word == "begin":
        exit_codes.report_to_supervisor(exit_codes.DIRECTORY, str(here / "run"))
    elif word.startswith("save"):
        (here / "run" / "checkpoints" / f"step_{int(word[4:]):06d}").mkdir(parents=True)
    elif word.startswith("kill"):
        os.kill(os.getpid(), int(word[4:]))
    elif word == "fail":
        exit_codes.report_to_supervisor(exit_codes.ERROR, "error: a learner died")
        sys.exit(1)
    elif word == "down":
        from algorithms.config.errors import ServiceError
        from algorithms.train.exit_codes import in_one_line

        def start():
            raise ServiceError("run.trackers: wandb cannot be started")

        sys.exit(in_one_line(start, ""))
    elif word == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
        (here / "pid").write_text(str(os.getpid()))
        (here / "pid").rename(here / "waiting")
        time.sleep(1000)
    elif word == "leave":
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", str(here)])
        (here / "left").write_text(str(left.pid))
    else:
        sys.exit(int(word))
"""
SUPERVISOR = """
import sys
from algorithms.train import restarts

restarts.FIRST_PAUSE_S = float(sys.argv[3])
sys.exit(restarts.supervise([sys.executable, sys.argv[1], sys.argv[2]], ["first", "arguments"], 2))
"""


@pytest.fixture
def start(tmp_path):
    """Start a supervisor of a run that follows `script`, one word a start; gives the process."""
    (tmp_path / "run.py").write_text(RUN)
    processes = []

    def run(script: str, pause_s: float = 0.01) -> "subprocess.Popen[str]":
        (tmp_path / "script").write_text(script)
        command = [sys.executable, "-c", SUPERVISOR, str(tmp_path / "run.py"), str(tmp_path), str(pause_s)]
        surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen(command, env=surroundings, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()
    for pid in (file.read_text() for file in (tmp_path / "waiting", tmp_path / "left") if file.exists()):
        with contextlib.suppress(OSError):  # what a failed test leaves, and not who has its number now
            if str(tmp_path) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)


def starts(folder: Path) -> list[str]:
    return (folder / "starts").read_text().splitlines()


def wait_until(happened, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline, "it never came"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_run_is_resumed_from_its_directory_until_it_is_done(start, tmp_path):
    process = start("begin,save40,kill9 begin,save80,fail begin,0")
    _, errors = process.communicate(timeout=300)
    resumed = f"--resume {tmp_path / 'run'}"
    assert starts(tmp_path) == ["first arguments", resumed, resumed]
    assert process.returncode == 0
    first, second = errors.splitlines()
    assert first.startswith("restart 1: killed by SIGKILL") and f"resuming {tmp_path / 'run'} after step 40" in first
    assert second.startswith("restart 2: error: a learner died; ") and "after step 80" in second


def test_a_run_that_died_before_it_had_a_directory_begins_again_as_it_began(start, tmp_path):
    process = start("kill11 begin,0")
    assert "restart 1: killed by SIGSEGV; starting again" in process.communicate(timeout=300)[1]
    assert starts(tmp_path) == ["first arguments", "first arguments"]


def test_a_run_that_gets_no_further_is_given_up_with_its_own_exit_code(start, tmp_path):
    process = start("begin,save40,fail begin,fail begin,fail begin,fail")
    last = process.communicate(timeout=300)[1].splitlines()[-1]
    assert process.returncode == 1 and len(starts(tmp_path)) == 3
    assert last.startswith("error: given up after 2 restarts without a new checkpoint: error: a learner died")
    assert last.endswith(f"--resume {tmp_path / 'run'}")


def test_wrong_input_ends_it_at_once(start, tmp_path):
    process = start("2 0")
    assert process.communicate(timeout=300)[1] == "" and process.returncode == 2
    assert len(starts(tmp_path)) == 1


def test_a_service_that_is_down_at_the_first_start_ends_it_at_once(start, tmp_path):
    process = start("down begin,0")
    assert process.communicate(timeout=300)[1] == "error: run.trackers: wandb cannot be started\n"
    assert process.returncode == 2 and len(starts(tmp_path)) == 1


def test_a_service_that_is_down_at_a_restart_is_tried_again(start, tmp_path):
    process = start("begin,save40,kill9 down begin,0")
    lines = process.communicate(timeout=300)[1].splitlines()
    assert process.returncode == 0 and len(starts(tmp_path)) == 3
    assert lines[2].startswith("restart 2: error: run.trackers: wandb cannot be started; resuming ")


def test_a_service_that_stays_down_is_given_up_with_exit_code_1(start, tmp_path):
    process = start("begin,save40,kill9 down down down")
    last = process.communicate(timeout=300)[1].splitlines()[-1]
    assert process.returncode == 1 and len(starts(tmp_path)) == 3
    assert last.startswith("error: given up after 2 restarts without a new checkpoint: error: run.trackers: wandb")


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_an_order_is_passed_on_and_nothing_is_restarted(start, tmp_path, order):
    process = start("begin,wait 0")
    wait_until((tmp_path / "waiting").exists, process)
    process.send_signal(order)
    process.communicate(timeout=300)
    assert process.returncode == 130 and len(starts(tmp_path)) == 1


def test_a_signal_to_the_run_alone_is_a_fault(start, tmp_path):
    process = start("begin,wait begin,0")
    wait_until((tmp_path / "waiting").exists, process)
    os.kill(int((tmp_path / "waiting").read_text()), signal.SIGTERM)
    assert "interrupted by a signal that its supervisor did not get" in process.communicate(timeout=300)[1]
    assert process.returncode == 0 and len(starts(tmp_path)) == 2


def test_an_order_during_a_pause_ends_it(start, tmp_path):
    process = start("kill9 0", pause_s=1000.0)
    assert "restart 1" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 130 and len(starts(tmp_path)) == 1


def test_the_run_ends_when_its_supervisor_is_killed(start, tmp_path):
    process = start("begin,wait")
    wait_until((tmp_path / "waiting").exists, process)
    process.kill()
    pid = int((tmp_path / "waiting").read_text())
    deadline = time.monotonic() + 300
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(pid)


def test_what_a_dead_run_left_is_killed_before_the_next_start(start, tmp_path):
    process = start("leave,kill9 begin,wait")
    wait_until((tmp_path / "waiting").exists, process)
    assert is_gone(int((tmp_path / "left").read_text()))
