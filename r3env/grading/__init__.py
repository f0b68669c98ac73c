"""Grading of mathematical answers against a deadline that holds.

A fast path in this process decides most answers; the others go to child processes, which are killed when an answer
such as `9^{9^9}` would keep them for ever.
"""

import atexit
import math
import os
import threading

from r3env.core import Reason, Verdict
from r3env.grading.cost import too_costly
from r3env.grading.counts import Counts
from r3env.grading.extraction import final_answer
from r3env.grading.grader import GraderDiedError, GraderError, GraderTimeoutError
from r3env.grading.memory import Memory, Outcome
from r3env.grading.pool import GraderPool
from r3env.grading.quick import quick_equal

__all__ = ["GraderError", "close", "grade", "statistics"]

MAX_ANSWER_CHARS = 2000
GRADERS_VARIABLE = "R3ENV_GRADERS"
DEFAULT_GRADERS = 8
_REMEMBERED_ANSWERS = 8192

_pool: GraderPool | None = None
_pool_lock = threading.Lock()
_counts = Counts()
_memory = Memory(_REMEMBERED_ANSWERS)


def grade(response: str, gold: str, *, timeout_s: float = 5.0) -> Verdict:
    r"""Judges the final answer of a response; callable from any thread of any process.

    Args:
        response: Everything that the policy wrote. Its final answer is the last complete `\boxed` or `\fbox` after any
            thinking; one longer than `MAX_ANSWER_CHARS` is right only if it is the gold itself.
        gold: The reference answer, in a box or not.
        timeout_s: Seconds that the comparison may take, from when a grader takes it up. An answer that a glance shows
            to be hopeless, see `r3env.grading.cost`, is a timeout at once, and one that was a timeout before is again.

    Returns:
        A verdict: `equal`, `different`, `no_answer`, or, with nothing known about the answer, `timeout` or `error`.

    Raises:
        ValueError: `timeout_s` is not positive and finite, or the environment variable R3ENV_GRADERS (how many
            processes at most, 8 by default) is not a positive whole number.
        GraderError: No grader process could be started.
    """
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be positive and finite, it is {timeout_s!r}")
    reason = _reason(response, gold, timeout_s)
    _counts.add(reason)
    return Verdict(reason is Reason.EQUAL, reason)


def statistics() -> dict[str, int]:
    """What `grade` has done in this process so far, as counts that only grow.

    Returns:
        One count for each `r3env.core.Reason` (`timeout` among them), and: `screened`, timeouts that were seen coming
        and cost no time; `overlong`, answers compared only by their spelling; `unread`, comparisons with an answer or
        a gold that could not be read as mathematics; `remembered`, verdicts known from the same answer to the same
        gold; `restarts`, grader processes that were replaced.
    """
    return _counts.snapshot()


def close() -> None:
    """Ends the grader processes of this process; the next answer that needs one starts them again.

    Remembered verdicts are forgotten, the statistics stay.
    """
    global _pool
    with _pool_lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()
    _memory.clear()


def _reason(response: str, gold: str, timeout_s: float) -> Reason:
    answer = final_answer(response)
    if answer is None:
        return Reason.NO_ANSWER
    gold = final_answer(gold) or gold
    if max(len(answer), len(gold)) > MAX_ANSWER_CHARS:
        _counts.add("overlong")
        return _equal_or_not(answer.strip() == gold.strip())
    plainly = quick_equal(gold, answer)
    if plainly is not None:
        return _equal_or_not(plainly)
    outcome = _memory.recall(gold, answer, timeout_s)
    if outcome is not None:
        _counts.add("remembered")
    elif too_costly(answer):
        _counts.add("screened")
        return Reason.TIMEOUT
    else:
        try:
            outcome = _work_out(gold, answer, timeout_s)
        except GraderDiedError:
            return Reason.ERROR
    if outcome.unread:
        _counts.add("unread")
    return Reason.TIMEOUT if outcome.equal is None else _equal_or_not(outcome.equal)


def _work_out(gold: str, answer: str, timeout_s: float) -> Outcome:
    try:
        equal, unread = _shared_pool().compare(gold, answer, timeout_s)
        outcome = Outcome(equal, unread, timeout_s)
    except GraderTimeoutError:
        outcome = Outcome(None, False, timeout_s)
    _memory.keep(gold, answer, outcome)
    return outcome


def _equal_or_not(equal: bool) -> Reason:
    return Reason.EQUAL if equal else Reason.DIFFERENT


def _shared_pool() -> GraderPool:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = GraderPool(_pool_size(), on_restart=lambda: _counts.add("restarts"))
        return _pool


def _pool_size() -> int:
    written = os.environ.get(GRADERS_VARIABLE, "").strip() or str(DEFAULT_GRADERS)
    if not written.isdecimal() or int(written) < 1:
        raise ValueError(f"{GRADERS_VARIABLE} must be a positive whole number, it is {written!r}")
    return int(written)


def _forget_pool() -> None:
    # A forked process shares the pipes of its parent's graders: two talking at once would mix up verdicts. And some
    # other thread of the parent may have held a lock at the time.
    global _pool, _pool_lock, _counts, _memory
    if _pool is not None:
        _pool.abandon()
    _pool, _pool_lock = None, threading.Lock()
    _counts, _memory = Counts(), Memory(_REMEMBERED_ANSWERS)


atexit.register(close)
os.register_at_fork(after_in_child=_forget_pool)
