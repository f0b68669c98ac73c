"""A child that is stopped costs its call's own limit; it is killed, and another one answers."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from r3env.child_processes import process, subprocess_scorer
from r3env.child_processes.pool import ChildPool
from r3env.child_processes.process import ProcessStartError
from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.core import Reason
from r3env.grading import grade, grader

LIMIT_S = 5.0
# Of a busy machine: the limit with its grace, and another child's start and imports. It was 60 s and 120 s.
IN_TIME_S = 55.0


@pytest.fixture
def scorer() -> Iterator[SubprocessScorer]:
    made = SubprocessScorer(size=1)
    yield made
    made.close()


def length(scorer: SubprocessScorer, text: str, timeout_s: float) -> float:
    return scorer.call("functools:partial", (len,), text, timeout_s=timeout_s)


def stop_idle(pool: ChildPool) -> int:
    """Stop the child that the next call will have; the one in reserve is another."""
    child = pool._idle[0]
    assert child.used
    os.kill(child._process.pid, signal.SIGSTOP)
    return child._process.pid


def test_a_stopped_child_is_killed_in_its_call_s_own_limit(scorer: SubprocessScorer) -> None:
    size = 300_000  # more than a pipe holds; the next test's request is short
    assert length(scorer, "ab", timeout_s=60.0) == 2
    stopped, started = stop_idle(scorer._pool), time.monotonic()
    assert length(scorer, "a" * size, LIMIT_S) == size
    assert time.monotonic() - started < IN_TIME_S
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


def test_a_tool_in_a_stopped_child_is_called_once(scorer: SubprocessScorer) -> None:
    assert scorer.ask("functools:partial", (dict,), {"a": 1}, timeout_s=60.0, once=True) == {"a": 1}
    stop_idle(scorer._pool)
    assert scorer.ask("functools:partial", (dict,), {"a": 2}, timeout_s=LIMIT_S, once=True) == {"a": 2}


def test_a_child_that_is_stopped_as_it_starts_is_given_up() -> None:
    child = process.Child("r3env.child_processes.scorer_child", "scorer")
    os.kill(child._process.pid, signal.SIGSTOP)
    with pytest.raises(ProcessStartError, match=r"a scorer process was not ready after 1 s"):
        child.wait_until_ready(1.0)
    child.kill()
    child.close_pipes()
    assert process._START_LIMIT_S + subprocess_scorer._FIRST_MAKING_LIMIT_S <= 180


def test_an_answer_whose_grader_is_stopped_gets_its_verdict() -> None:
    grader.close()
    assert grade(r"\boxed{\sqrt{12}}", r"2\sqrt{3}", timeout_s=60.0).reason is Reason.EQUAL
    stopped = stop_idle(grader._shared_pool())
    assert grade(r"\boxed{\sqrt{27}}", r"3\sqrt{3}", timeout_s=10.0).reason is Reason.EQUAL
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)
    grader.close()
