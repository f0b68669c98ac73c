"""Grading of mathematical answers against a deadline that holds.

A fast path in this process decides most answers; the others go to child processes, which are killed when an
answer such as `9^{9^9}` would keep them for ever.
"""

import atexit
import math
import os
import threading

from r3env.core import Reason, Verdict
from r3env.grading.extraction import final_answer
from r3env.grading.grader import GraderDiedError, GraderError, GraderTimeoutError
from r3env.grading.normalisation import quick_equal
from r3env.grading.pool import GraderPool

__all__ = ["GraderError", "close", "grade"]

MAX_ANSWER_CHARS = 2000
GRADERS_VARIABLE = "R3ENV_GRADERS"
DEFAULT_GRADERS = 8

_pool: GraderPool | None = None
_pool_lock = threading.Lock()


def grade(response: str, gold: str, *, timeout_s: float = 5.0) -> Verdict:
    r"""Judges the final answer of a response; callable from any thread of any process.

    Args:
        response: Everything that the policy wrote. Its final answer is the last complete `\boxed` or `\fbox`
            after any thinking; one longer than `MAX_ANSWER_CHARS` is right only if it is the gold itself.
        gold: The reference answer, in a box or not.
        timeout_s: Seconds that the comparison may take, from when a grader takes it up.

    Returns:
        A verdict: `equal`, `different`, `no_answer`, or, with nothing known about the answer, `timeout` or
        `error`.

    Raises:
        ValueError: `timeout_s` is not positive and finite, or the environment variable R3ENV_GRADERS (how
            many processes at most, 8 by default) is not a positive whole number.
        GraderError: No grader process could be started.
    """
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be positive and finite, it is {timeout_s!r}")
    answer = final_answer(response)
    if answer is None:
        return Verdict(False, Reason.NO_ANSWER)
    gold = final_answer(gold) or gold
    if max(len(answer), len(gold)) > MAX_ANSWER_CHARS:
        return _verdict(answer.strip() == gold.strip())
    plainly = quick_equal(gold, answer)
    if plainly is not None:
        return _verdict(plainly)
    try:
        return _verdict(_shared_pool().equivalent(gold, answer, timeout_s))
    except GraderTimeoutError:
        return Verdict(False, Reason.TIMEOUT)
    except GraderDiedError:
        return Verdict(False, Reason.ERROR)


def close() -> None:
    """Ends the grader processes of this process; the next answer that needs one starts them again."""
    global _pool
    with _pool_lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def _verdict(correct: bool) -> Verdict:
    return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


def _shared_pool() -> GraderPool:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = GraderPool(_pool_size())
        return _pool


def _pool_size() -> int:
    written = os.environ.get(GRADERS_VARIABLE, "").strip() or str(DEFAULT_GRADERS)
    if not written.isdecimal() or int(written) < 1:
        raise ValueError(f"{GRADERS_VARIABLE} must be a positive whole number, it is {written!r}")
    return int(written)


def _forget_pool() -> None:
    # A forked process shares the pipes of its parent's graders: two talking at once would mix up verdicts.
    global _pool, _pool_lock
    if _pool is not None:
        _pool.abandon()
    _pool, _pool_lock = None, threading.Lock()


atexit.register(close)
os.register_at_fork(after_in_child=_forget_pool)
