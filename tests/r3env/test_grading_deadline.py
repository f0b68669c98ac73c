"""The deadline holds whatever the answer does, in whichever thread, and graders outlive nobody."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import r3env
from r3env.child_processes.process import ProcessDiedError, ProcessTimeoutError, child_environment
from r3env.core import Reason
from r3env.grading import GraderError, close, grade, grader, statistics
from r3env.grading.child import MEMORY_LIMIT_BYTES
from r3env.grading.grader import compare_in_grader
from tests.own_ray import own_ray
from tests.r3env.grading_corpus import DIFFERENT, EQUAL

HOPELESS = {
    "tower": r"9^{9^9}",
    "power of ten": r"10^{10^{10}}",
    "factorial": r"(10!)!",
    "binomial": r"\binom{10^9}{5\cdot10^8}",
    "power of two": r"2^{2^{40}}",
    "sum": r"\sum_{i=1}^{10^9}i^i",
    "parentheses": "(" * 10_000 + "5" + ")" * 10_000,
    "sums in parentheses": "(1+" * 10_000 + "5" + ")" * 10_000,
    "digits": "9" * 200_000,
}
UNFORESEEN = r"\sum_{i=1}^{200}i^i"  # hangs too, but the filter lets it through
DEADLINE_S = 0.4
# Milliseconds, but for a machine that is busy with other things; what hangs takes hours.
AT_ONCE_S = 120.0
GONE_S = 30.0
ROOT = str(Path(r3env.__file__).resolve().parents[1])


@pytest.fixture
def fresh_pool() -> Iterator[None]:
    close()
    yield
    close()


def filtered(answer: str) -> bool:
    """Whether the answer is correct, the usual way."""
    return grade(f"\\boxed{{{answer}}}", "6", timeout_s=DEADLINE_S).correct


def unfiltered(answer: str) -> bool:
    """Whether the answer is correct, straight from a grader process: no filter, no cap on its length."""
    try:
        return compare_in_grader("6", answer, DEADLINE_S)[0]
    except (ProcessTimeoutError, ProcessDiedError):
        return False


def rejection_s(way: Callable[[str], bool], answer: str) -> float:
    started = time.monotonic()
    assert not way(answer)
    return time.monotonic() - started


def start_graders(number: int) -> None:
    """Has this many graders ready: their start does not count, the deadline begins when one takes an answer up."""
    with contextlib.ExitStack() as lent:
        for _ in range(number):
            lent.enter_context(grader._shared_pool().child())


FRESH = itertools.count(2)


def honest(timeout_s: float = 60.0) -> float:
    """The seconds that an answer takes that needs a grader process, and was never graded before."""
    number = next(FRESH)
    response = rf"\boxed{{\sqrt{{{3 * number**2}}}}}"
    started = time.monotonic()
    assert grade(response, rf"{number}\sqrt{{3}}", timeout_s=timeout_s).reason is Reason.EQUAL
    return time.monotonic() - started


def processes() -> dict[int, int]:
    """The parents of the running grader processes, their workers included."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # processes come and go meanwhile
            command = (folder / "cmdline").read_text()
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and "r3env.grading.child" in command:
                found[int(folder.name)] = int(parent)
    return found


def graders(parent: int | None = None) -> list[int]:
    """Process ids of the running graders of a process, by default of this one, without their workers."""
    return [pid for pid, its_parent in processes().items() if its_parent == (parent or os.getpid())]


def with_workers(pids: list[int]) -> list[int]:
    return [*pids, *(pid for pid, parent in processes().items() if parent in pids)]


def worked_s() -> dict[int, float]:
    """Seconds of processor time that each worker of any grader has had."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    parents = processes()
    for pid in (pid for pid, parent in parents.items() if parent in parents):
        with contextlib.suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[pid] = (int(user) + int(system)) / tick
    return found


def wait_until_at_work(parent: int | None = None) -> None:
    """Waits until a worker of a process's graders is at an answer that hangs, an honest one takes less."""
    before, deadline = worked_s(), time.monotonic() + 60
    while True:
        ours = set(with_workers(graders(parent)))
        if any(pid in ours and spent - before.get(pid, 0.0) > 0.3 for pid, spent in worked_s().items()):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("way", [filtered, unfiltered])
@pytest.mark.parametrize("name", HOPELESS)
def test_hopeless_answers_in_the_main_thread(name: str, way: Callable[[str], bool]) -> None:
    start_graders(1)
    assert rejection_s(way, HOPELESS[name]) < (DEADLINE_S if way is unfiltered else 0) + AT_ONCE_S
    assert honest() < AT_ONCE_S


@pytest.mark.parametrize("way", [filtered, unfiltered])
def test_hopeless_answers_in_eight_threads_at_once(way: Callable[[str], bool]) -> None:
    start_graders(8)
    with ThreadPoolExecutor(8) as threads:
        for answers in (list(HOPELESS.values())[:8], list(HOPELESS.values())[-8:]):
            elapsed = list(threads.map(lambda answer: rejection_s(way, answer), answers))
            assert max(elapsed) < DEADLINE_S + AT_ONCE_S, elapsed
            assert max(threads.map(lambda _: honest(), range(8))) < AT_ONCE_S


@pytest.mark.slow
def test_hopeless_answers_inside_an_actor() -> None:
    import ray

    class Judge:
        def elapsed(self, answers: list[str]) -> list[float]:
            start_graders(len(answers))
            with ThreadPoolExecutor(len(answers)) as threads:
                times = list(threads.map(lambda answer: rejection_s(unfiltered, answer), answers))
            return times + [rejection_s(filtered, answer) for answer in answers]

        def honest(self) -> float:
            return honest()

    with own_ray():
        judge = ray.remote(Judge).options(runtime_env={"env_vars": {"PYTHONPATH": ROOT}}).remote()
        assert max(ray.get(judge.elapsed.remote(list(HOPELESS.values())[:4]))) < DEADLINE_S + AT_ONCE_S
        assert ray.get(judge.honest.remote()) < AT_ONCE_S


@pytest.mark.slow
def test_a_long_queue_behind_answers_that_hang_loses_none_to_the_deadline(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R3ENV_GRADERS", "2")
    start_graders(2)
    # An honest answer takes milliseconds: a busy machine does not stretch them to ten seconds.
    hang_s, deadline_s = 12.0, 10.0
    honest_ones = [(rf"{n % 40 + 2}\sqrt{{7}}", rf"\sqrt{{{7 * (n % 40 + 2) ** 2}}}") for n in range(400)]
    started = time.monotonic()
    with ThreadPoolExecutor(32) as threads:
        lost = [threads.submit(compare_in_grader, "6", f"{UNFORESEEN}+{n}", hang_s) for n in range(2)]
        verdicts = list(threads.map(lambda pair: compare_in_grader(*pair, deadline_s), honest_ones))
        assert all(isinstance(future.exception(), ProcessTimeoutError) for future in lost)
    assert verdicts == [(True, False)] * len(honest_ones)
    assert time.monotonic() - started > hang_s > deadline_s  # they did wait for longer than the deadline


def test_honest_answers_are_not_kept_waiting_by_a_hopeless_one() -> None:
    start_graders(2)
    hopeless = threading.Thread(target=grade, args=[f"\\boxed{{{UNFORESEEN}}}", "7"], kwargs={"timeout_s": 60.0})
    hopeless.start()
    try:
        wait_until_at_work()
        assert honest() < AT_ONCE_S
        assert hopeless.is_alive()
    finally:
        close()
        hopeless.join()


SLOW_LIBRARY = """
import time

time.sleep(4)

class LatexExtractionConfig:
    def __init__(self, **settings): pass

def parse(text, *arguments, **settings):
    return [text, text]

def verify(gold, answer, **settings):
    return True
"""


def test_the_deadline_does_not_count_the_start_of_a_grader(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "math_verify.py").write_text(SLOW_LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert honest(timeout_s=3.0) > 3.0


def test_one_grader_is_enough(fresh_pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R3ENV_GRADERS", "1")
    start_graders(1)
    with ThreadPoolExecutor(3) as threads:
        hopeless = threads.submit(unfiltered, HOPELESS["tower"])
        waiting = [threads.submit(honest) for _ in range(2)]
        assert not hopeless.result()
        assert all(future.result() < 60 for future in waiting)
    assert len(graders()) == 1


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_senseless_number_of_graders_is_refused(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("R3ENV_GRADERS", number)
    with pytest.raises(ValueError, match="R3ENV_GRADERS"):
        honest()


HUNGRY_LIBRARY = """
import re

class LatexExtractionConfig:
    def __init__(self, **settings): pass

def parse(text, *arguments, **settings):
    return [text, text]

def verify(gold, answer, **settings):
    mebibytes = re.search("MB_(\\\\d+)", answer[0])
    return mebibytes is not None and len(bytearray(int(mebibytes[1]) << 20)) > 0
"""


def test_hunger_for_memory_is_an_error_at_the_limit_and_harms_nobody_else(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "math_verify.py").write_text(HUNGRY_LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    start_graders(1)
    limit = MEMORY_LIMIT_BYTES >> 20
    assert compare_in_grader("y", f"MB_{limit // 8}", 60.0) == (True, False)
    with pytest.raises(ProcessDiedError, match="MemoryError"):
        compare_in_grader("y", f"MB_{limit}", 60.0)
    assert compare_in_grader("y", f"MB_{limit // 8}", 60.0) == (True, False)


def test_a_worker_may_not_use_more_memory_than_the_limit(fresh_pool: None) -> None:
    start_graders(1)  # another's worker would not have come as far
    honest()
    keepers = graders()
    workers = set(with_workers(keepers)) - set(keepers)
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in workers]
    assert limits and all(re.search(rf"Max address space +{MEMORY_LIMIT_BYTES} ", text) for text in limits)


@pytest.mark.slow
def test_graders_without_gmpy2_behave_as_those_of_the_other_tests(
    fresh_pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPY_GROUND_TYPES", "python")
    monkeypatch.setenv("MPMATH_NOGMPY", "1")
    look = (
        "from mpmath.libmp import BACKEND; from sympy.external.gmpy import GROUND_TYPES; print(GROUND_TYPES, BACKEND)"
    )
    used = subprocess.run(
        [sys.executable, "-c", look], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert used.stdout.split() == ["python", "python"]
    start_graders(1)
    for name, answer in HOPELESS.items():
        assert rejection_s(unfiltered, answer) < DEADLINE_S + AT_ONCE_S, name
        assert rejection_s(filtered, answer) < AT_ONCE_S, name
        assert honest() < AT_ONCE_S, name
    assert grade(f"\\boxed{{{UNFORESEEN}}}", "6", timeout_s=DEADLINE_S).reason is Reason.TIMEOUT
    for family in ("radicals and constants", "expressions", "sets", "intervals", "matrices"):
        for table, reason in ((EQUAL, Reason.EQUAL), (DIFFERENT, Reason.DIFFERENT)):
            for answer, gold in table.get(family, []):
                assert grade(f"\\boxed{{{answer}}}", gold, timeout_s=20).reason is reason, (answer, gold)


def test_a_killed_grader_is_replaced() -> None:
    honest()
    before = graders()
    workers = set(with_workers(before)) - set(before)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert wait_until_gone([*before, *workers])
    honest()
    assert set(graders()).isdisjoint(before)


def test_a_killed_worker_is_replaced_at_once() -> None:
    start_graders(1)
    keepers = graders()
    for worker in set(with_workers(keepers)) - set(keepers):
        os.kill(worker, signal.SIGKILL)
    assert compare_in_grader("1", "1", 60.0) == (True, False)  # the answer that finds the body
    assert honest() < AT_ONCE_S
    assert set(graders()) >= set(keepers)  # which have the libraries loaded


def test_a_timed_out_answer_is_not_tried_again_unless_it_gets_longer(fresh_pool: None) -> None:
    start_graders(1)
    before = statistics()
    response = f"\\boxed{{{UNFORESEEN}}}"
    assert grade(response, "6", timeout_s=0.4).reason is Reason.TIMEOUT
    assert grade(response, "6", timeout_s=0.3).reason is Reason.TIMEOUT
    assert new_counts(before) == {"timeout": 2, "remembered": 1, "restarts": 1}
    started = time.monotonic()
    assert grade(response, "6", timeout_s=0.6).reason is Reason.TIMEOUT
    assert time.monotonic() - started >= 0.6
    assert new_counts(before) == {"timeout": 3, "remembered": 1, "restarts": 2}


def test_statistics_count_every_answer_once_by_its_reason() -> None:
    start_graders(1)
    before = statistics()
    for answer in ("6", "7", r"\frac{12}{2}+0", "9^{9^9}", "6" * 3000, r"\foo{6}"):
        grade(f"\\boxed{{{answer}}}", "6")
    grade("6", "6")
    expected = {"equal": 2, "different": 3, "timeout": 1, "no_answer": 1, "screened": 1, "overlong": 1, "unread": 1}
    assert new_counts(before) == expected


def new_counts(before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in statistics().items() if count != before[name]}


def test_closing_ends_the_graders_and_what_they_are_busy_with() -> None:
    honest()
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(grade, f"\\boxed{{{UNFORESEEN}}}", "6", timeout_s=60.0)
        wait_until_at_work()
        before = with_workers(graders())
        close()
        assert busy.result(timeout=GONE_S).reason is Reason.ERROR
    assert before and wait_until_gone(before)
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
    return with_workers(graders(process.pid))


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + GONE_S
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(running(pid) for pid in pids)


@pytest.mark.parametrize("busy", [True, False])
def test_graders_die_with_a_killed_parent(tmp_path: Path, busy: bool) -> None:
    response = rf"\boxed{{{UNFORESEEN}}}"
    hang = f"threading.Thread(target=grade, args=[{response!r}, '6'], kwargs={{'timeout_s': 300}}).start()"
    script = f"""
        import threading
        from r3env.grading import grade
        grade("\\\\boxed{{\\\\sqrt{{8}}}}", "2\\\\sqrt{{2}}")
        {hang if busy else ""}
        print("ready", flush=True)
        input()
    """
    with run_script(tmp_path, script) as process:
        pids, deadline = pids_when_ready(process), time.monotonic() + 60
        while len(pids) < 4 and time.monotonic() < deadline:  # a grader and its worker, and the one in reserve
            time.sleep(0.02)
            pids = with_workers(graders(process.pid))
        if busy:
            wait_until_at_work(process.pid)
        process.kill()
    assert len(pids) >= 4
    assert wait_until_gone(pids)


def test_a_script_without_a_guard_runs_once_and_ends_with_its_graders(tmp_path: Path) -> None:
    script = """
        from r3env.grading import grade
        assert grade("\\\\boxed{\\\\sqrt{8}}", "2\\\\sqrt{2}").correct
        print("ready", flush=True)
        input()
    """
    with run_script(tmp_path, script) as process:
        pids = pids_when_ready(process)
        assert process.communicate("\n")[0] == ""
    assert process.returncode == 0
    assert pids and wait_until_gone(pids)


def test_a_forked_process_uses_graders_of_its_own(tmp_path: Path) -> None:
    script = """
        import os
        from r3env.grading import grade, grader

        def right(start):
            return all(grade(f"\\\\boxed{{{n}x}}", f"x+{n - 1}x").correct for n in range(start, start + 5))

        assert right(2)
        parents_pool = grader._shared_pool()
        if os.fork() == 0:
            os._exit(0 if right(20) and grader._shared_pool() is not parents_pool else 1)
        assert right(40)
        print(os.wait()[1])
    """
    with run_script(tmp_path, script) as process:
        assert process.stdout is not None and process.stdout.read() == "0\n"
    assert process.returncode == 0
