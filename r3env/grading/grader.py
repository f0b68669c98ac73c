"""Grade mathematical answers against an enforced deadline.

A fast path in this process decides most answers; the others go to child processes, which are killed when an answer
such as `9^{9^9}` would keep them for ever.
"""

import json
import math
import os
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

from r3env.child_processes.pool import ChildPool
from r3env.child_processes.process import Child, ProcessDiedError, ProcessStartError, ProcessTimeoutError
from r3env.core import Reason, Verdict
from r3env.grading.answer_forms import BOX, form_problem
from r3env.grading.cost import too_costly
from r3env.grading.extraction import FinalBoxes, answer_in, final_boxes, reference_boxes
from r3env.grading.fast_path import fast_equal
from r3env.grading.readings import answer_text, gold_readings, repeated_answers, same_elements


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Args:
        equal: Whether the two were equal; None if that took longer than `timeout_s`.
        unread: Whether one of the two was not understood as mathematics.
        timeout_s: The deadline that was given.
    """

    equal: bool | None
    unread: bool
    timeout_s: float


class VerdictCache:
    """The latest `size` outcomes; safe to use from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[tuple[str, str], Outcome] = OrderedDict()

    def get(self, gold: str, answer: str, timeout_s: float) -> Outcome | None:
        """Return the outcome for this pair; a timeout only if the deadline was no shorter than `timeout_s`."""
        with self._lock:
            outcome = self._outcomes.get((gold, answer))
            if outcome is None or (outcome.equal is None and outcome.timeout_s < timeout_s):
                return None
            self._outcomes.move_to_end((gold, answer))
            return outcome

    def put(self, gold: str, answer: str, outcome: Outcome) -> None:
        """Store an outcome, and forget the one that was of no use for longest."""
        with self._lock:
            self._outcomes[gold, answer] = outcome
            self._outcomes.move_to_end((gold, answer))
            if len(self._outcomes) > self._size:
                self._outcomes.popitem(last=False)

    def clear(self) -> None:
        """Delete all entries."""
        with self._lock:
            self._outcomes.clear()


GraderError = ProcessStartError

MAX_ANSWER_CHARS = 2000
GRADERS_VARIABLE = "R3ENV_GRADERS"
DEFAULT_GRADERS = 8
_REMEMBERED_ANSWERS = 8192

_COUNTED = (*map(str, Reason), "screened", "overlong", "unread", "remembered", "restarts")
# For the grader to end an overdue comparison and fork another worker, on a machine that does much else.
_GRACE_S = 5.0

_pool: ChildPool | None = None
_lock = threading.Lock()
_counts: Counter[str] = Counter()
_cache = VerdictCache(_REMEMBERED_ANSWERS)


def grade(response: str, gold: str, *, timeout_s: float = 5.0, form: str = BOX) -> Verdict:
    r"""Judge the final answer of a response; callable from any thread of any process.

    Args:
        response: Everything that the policy wrote. Its final answer is the last complete `\boxed` or `\fbox` after any
            thinking, or the list in the last boxes that stand together; one longer than `MAX_ANSWER_CHARS` is correct
            only if it is the gold itself.
        gold: The reference answer, in a box or several, or not.
        timeout_s: Seconds that the comparison may take, from when a grader takes it up. An answer that a glance shows
            to be hopeless, see `r3env.grading.cost`, is a timeout at once, and one that was a timeout before is again.
        form: Where the final answer stands: `box`, `last_number` or `after:TEXT`, see
            `r3env.grading.extraction.final_answer`. The gold may be in a box whatever it is.

    Returns:
        A verdict: `equal`, `different`, `no_answer`, or, with nothing known about the answer, `timeout` or `error`;
        with the answer, see `r3env.grading.extraction.final_answer`.

    Raises:
        ValueError: `timeout_s` is not positive and finite, `form` is none, or the environment variable R3ENV_GRADERS
            (how many processes at most, 8 by default) is not a positive whole number.
        GraderError: No grader process could be started.
    """
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be positive and finite, it is {timeout_s!r}")
    if problem := form_problem(form):
        raise ValueError(f"form {problem}")
    answer = final_boxes(response, form)
    reason = Reason.NO_ANSWER if answer is None else _reason(answer, gold, timeout_s)
    _count(reason)
    return Verdict(reason is Reason.EQUAL, reason, answer=None if answer is None else answer_in(answer))


def same_value(first: str, second: str, *, timeout_s: float = 5.0) -> bool | None:
    """Return whether two answers, without their boxes, are equal; None if `timeout_s` was too short to find out.

    Raises:
        GraderError: No grader process could be started.
    """
    reason = _compared(second, first, timeout_s)
    return None if reason in (Reason.TIMEOUT, Reason.ERROR) else reason is Reason.EQUAL


def statistics() -> dict[str, int]:
    """Return what `grade` has done in this process so far.

    Returns:
        One count for each `r3env.core.Reason` (`timeout` among them), and: `screened`, timeouts that were seen coming
        and cost no time; `overlong`, answers compared only by their spelling; `unread`, comparisons with an answer or
        a gold that could not be read as mathematics; `remembered`, verdicts known from the same answer to the same
        gold; `restarts`, grader processes that were replaced.
    """
    with _lock:
        return {name: _counts[name] for name in _COUNTED}


def close() -> None:
    """End the grader processes of this process; the next answer that needs one starts them again.

    Remembered verdicts are forgotten, the statistics stay.
    """
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()
    _cache.clear()


def _reason(answer: FinalBoxes, gold: str, timeout_s: float) -> Reason:
    boxed_gold = reference_boxes(gold)
    golds = gold_readings(boxed_gold) if boxed_gold else [gold]
    for reference in golds:
        text = answer_text(answer, reference)
        reason = Reason.DIFFERENT if text is None else _compared(text, reference, timeout_s)
        if reason is not Reason.DIFFERENT:
            return reason
    if len(answer.boxes) == 1:
        return Reason.DIFFERENT
    overlong = len(gold) + sum(len(box.content) for box in answer.boxes) > MAX_ANSWER_CHARS
    if not overlong and any(same_elements(answer, reference) for reference in golds):
        return Reason.EQUAL
    repeated = repeated_answers(answer)
    reasons = (_compared(content, golds[0], timeout_s) for content in repeated)
    unequal = next((reason for reason in reasons if reason is not Reason.EQUAL), None)
    return unequal or (Reason.EQUAL if repeated else Reason.DIFFERENT)


def _compared(answer: str, gold: str, timeout_s: float) -> Reason:
    if max(len(answer), len(gold)) > MAX_ANSWER_CHARS:
        _count("overlong")
        return _equal_or_not(answer.strip() == gold.strip())
    plainly = fast_equal(gold, answer)
    if plainly is not None:
        return _equal_or_not(plainly)
    outcome = _cache.get(gold, answer, timeout_s)
    if outcome is not None:
        _count("remembered")
    elif too_costly(answer):
        _count("screened")
        return Reason.TIMEOUT
    else:
        try:
            outcome = _work_out(gold, answer, timeout_s)
        except ProcessDiedError:
            return Reason.ERROR
    if outcome.unread:
        _count("unread")
    return Reason.TIMEOUT if outcome.equal is None else _equal_or_not(outcome.equal)


def _work_out(gold: str, answer: str, timeout_s: float) -> Outcome:
    try:
        equal, unread = compare_in_grader(gold, answer, timeout_s)
        outcome = Outcome(equal, unread, timeout_s)
    except ProcessTimeoutError:
        outcome = Outcome(None, False, timeout_s)
    _cache.put(gold, answer, outcome)
    return outcome


def compare_in_grader(gold: str, answer: str, timeout_s: float) -> tuple[bool, bool]:
    """Return whether the answer is equivalent to the gold, and whether one of the two could not be read.

    Waits for a grader process first. The deadline counts from when one takes the answer up; it ends an overdue
    comparison itself, and is ready for the next one at once.

    Raises:
        ProcessTimeoutError: The answer took longer than `timeout_s`.
        ProcessDiedError: Grading failed, for example for want of memory.
        GraderError: No grader could be started.
    """
    request = json.dumps([gold, answer, timeout_s]).encode()

    def talk(grader: Child) -> dict[str, Any]:
        grader.send(request, timeout_s + _GRACE_S)
        return grader.receive(timeout_s, _GRACE_S)

    reply = _shared_pool().exchange(talk)
    if reply.get("restarted"):
        _count("restarts")
    if "timeout" in reply:
        raise ProcessTimeoutError
    if "correct" not in reply:
        raise ProcessDiedError(str(reply.get("error", "died")))
    return bool(reply["correct"]), bool(reply["unread"])


def _equal_or_not(equal: bool) -> Reason:
    return Reason.EQUAL if equal else Reason.DIFFERENT


def _count(name: str) -> None:
    with _lock:
        _counts[name] += 1


def _shared_pool() -> ChildPool:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ChildPool(pool_size(), "r3env.grading.child", "grader", on_replaced=lambda: _count("restarts"))
        return _pool


def pool_size() -> int:
    """Return the maximum number of grader processes.

    Raises:
        ValueError: R3ENV_GRADERS is not a positive whole number.
    """
    written = os.environ.get(GRADERS_VARIABLE, "").strip() or str(DEFAULT_GRADERS)
    if not written.isdecimal() or int(written) < 1:
        raise ValueError(f"{GRADERS_VARIABLE} must be a positive whole number, it is {written!r}")
    return int(written)


def _start_afresh() -> None:
    # Some other thread of the parent may have held the lock; the pool lets go of the parent's graders itself.
    global _pool, _lock, _counts, _cache
    _pool, _lock, _counts, _cache = None, threading.Lock(), Counter(), VerdictCache(_REMEMBERED_ANSWERS)


os.register_at_fork(after_in_child=_start_afresh)
