"""The deadline holds whatever the answer does, in whichever thread, and graders outlive nobody."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import r3env
from r3env.core import Reason
from r3env.grading import GraderError, close, grade

HOPELESS = [
    r"9^{9^9}",
    r"10^{10^{10}}",
    r"(10!)!",
    r"\binom{10^9}{5\cdot10^8}",
    r"2^{2^{40}}",
    r"\sum_{i=1}^{10^9}i^i",
]
SLOW = r"\boxed{" + "(" * 12 + "5" + ")" * 12 + "}"
DEADLINE_S = 1.0
ROOT = str(Path(r3env.__file__).resolve().parents[1])


@pytest.fixture
def fresh_pool() -> Iterator[None]:
    close()
    yield
    close()


def timed_hopeless(answer: str) -> tuple[Reason, float]:
    started = time.monotonic()
    verdict = grade(f"\\boxed{{{answer}}}", "5", timeout_s=DEADLINE_S)
    assert not verdict.correct
    return verdict.reason, time.monotonic() - started


def honest(timeout_s: float = 5.0) -> float:
    started = time.monotonic()
    assert grade(r"\boxed{\frac{2}{4}}", "1/2", timeout_s=timeout_s).reason is Reason.EQUAL
    return time.monotonic() - started


def graders(parent: int | None = None) -> list[int]:
    """Process ids of the running graders of a process, by default of this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # processes come and go meanwhile
            command = (folder / "cmdline").read_text()
            state, parent_pid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            ours = int(parent_pid) == (parent or os.getpid())
            if ours and state != "Z" and "r3env.grading.child" in command:
                found.append(int(folder.name))
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("answer", HOPELESS)
def test_hopeless_answers_in_the_main_thread(answer: str) -> None:
    honest()
    reason, elapsed = timed_hopeless(answer)
    assert reason in (Reason.TIMEOUT, Reason.ERROR)
    assert elapsed < DEADLINE_S + 2
    assert honest() < 2


def test_hopeless_answers_in_four_threads_at_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        # The start of a grader does not count, so four are started first, by answers that keep them a while.
        list(threads.map(lambda _: grade(SLOW, "6"), range(4)))
        results = list(threads.map(timed_hopeless, HOPELESS[:4]))
        assert all(elapsed < DEADLINE_S + 2 for _, elapsed in results), results
        assert all(threads.map(lambda _: honest() < 3, range(4)))


def test_honest_answers_are_not_kept_waiting_by_a_hopeless_one() -> None:
    honest()
    hopeless = threading.Thread(target=timed_hopeless, args=[HOPELESS[0]])
    hopeless.start()
    time.sleep(0.1)
    assert honest() < 2
    hopeless.join()


def test_the_deadline_does_not_count_the_start_of_a_grader(fresh_pool: None) -> None:
    assert honest(timeout_s=0.2) > 0.2


def test_one_grader_is_enough(fresh_pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R3ENV_GRADERS", "1")
    with ThreadPoolExecutor(3) as threads:
        hopeless = threads.submit(timed_hopeless, HOPELESS[0])
        waiting = [threads.submit(honest) for _ in range(2)]
        assert hopeless.result()[0] is Reason.TIMEOUT
        assert all(future.result() < DEADLINE_S + 4 for future in waiting)
    assert len(graders()) == 1


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_senseless_number_of_graders_is_refused(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("R3ENV_GRADERS", number)
    with pytest.raises(ValueError, match="R3ENV_GRADERS"):
        honest()


def test_hunger_for_memory_is_an_error_or_a_wrong_answer_and_harms_nobody_else() -> None:
    verdict = grade(r"\boxed{10^{10^{9}} - 10^{10^{9}+1}}", "5", timeout_s=DEADLINE_S)
    assert not verdict.correct
    assert honest() < 3


def test_a_killed_grader_is_replaced() -> None:
    honest()
    before = graders()
    for grader in before:
        os.kill(grader, signal.SIGKILL)
    assert wait_until_gone(before, 3.0)
    honest()
    assert set(graders()).isdisjoint(before)


def test_closing_ends_the_graders_and_what_they_are_busy_with() -> None:
    honest()
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(grade, f"\\boxed{{{HOPELESS[0]}}}", "5", timeout_s=60.0)
        time.sleep(0.3)
        before = graders()
        close()
        assert busy.result(timeout=5).reason is Reason.ERROR
    assert before and not any(running(grader) for grader in before)
    honest()


def test_graders_that_cannot_start_are_a_clear_error(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no such luck')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(GraderError, match="no such luck"):
        honest()


def run_script(tmp_path: Path, script: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    )


def pids_when_ready(process: subprocess.Popen[str]) -> list[int]:
    """The graders of a script that has written a line and waits for one."""
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return graders(process.pid)


def wait_until_gone(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(running(pid) for pid in pids)


@pytest.mark.parametrize("busy", [True, False])
def test_graders_die_with_a_killed_parent(tmp_path: Path, busy: bool) -> None:
    hang = (
        'threading.Thread(target=grade, args=["\\\\boxed{9^{9^9}}", "5"], kwargs={"timeout_s": 60}).start()'
    )
    script = f"""
        import threading, time
        from r3env.grading import grade
        grade("\\\\boxed{{2/4}}", "1/2")
        {hang if busy else ""}
        time.sleep(0.5)
        print("ready", flush=True)
        input()
    """
    with run_script(tmp_path, script) as process:
        pids = pids_when_ready(process)
        process.kill()
    assert len(pids) >= 2
    assert wait_until_gone(pids, 3.0)


def test_a_script_without_a_guard_runs_once_and_ends_with_its_graders(tmp_path: Path) -> None:
    script = """
        from r3env.grading import grade
        assert grade("\\\\boxed{2/4}", "1/2").correct
        print("ready", flush=True)
        input()
    """
    with run_script(tmp_path, script) as process:
        pids = pids_when_ready(process)
        assert process.communicate("\n")[0] == ""
    assert process.returncode == 0
    assert pids and wait_until_gone(pids, 3.0)


def test_a_forked_process_uses_graders_of_its_own(tmp_path: Path) -> None:
    script = """
        import os
        from r3env import grading
        from r3env.grading import grade

        def right():
            return all(grade(f"\\\\boxed{{{n}/3}}", f"{2 * n}/6").correct for n in range(5))

        assert right()
        parents_pool = grading._shared_pool()
        if os.fork() == 0:
            os._exit(0 if right() and grading._shared_pool() is not parents_pool else 1)
        assert right()
        print(os.wait()[1])
    """
    with run_script(tmp_path, script) as process:
        assert process.stdout is not None and process.stdout.read() == "0\n"
    assert process.returncode == 0
