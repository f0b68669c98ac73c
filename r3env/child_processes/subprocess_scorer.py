"""Scores computed in child processes that are killed at a deadline.

A scorer that evaluates what a policy wrote can be made to run for ever (`9**9**9`), and neither a thread nor a signal
stops one long operation on integers. Mathematical answers have graders of their own in `r3env.grading`.

What is fenced: each call runs in a fork of its own, with a limit of memory, so it cannot stay for later calls; nothing
that comes back is unpickled or run here, only one finite number (or, for `ask`, plain data) of one well-formed message
with a random token that the fork never had is believed; after anything else the child is killed and replaced. If that
child had served other calls, theirs may be the blame (a process that one left behind can write into the pipe at any
time): the call is repeated in a child that had none. A scorer that never runs an answer as code may keep its fork for
its next calls, which saves most of the time of a short one.

What is not: the fork runs as this process's user, with its files, network and processes in reach, and code that runs
in it can look through the scorer's own memory and so make up the score of its own call. So never give an answer to a
scorer that would run it as code: `r3env.envs.reasoning_gym_scoring` refuses such answers first.
"""

import functools
import hmac
import math
import os
import pickle
import secrets
from collections.abc import Sequence
from typing import Any

from r3env.child_processes.pool import ChildPool
from r3env.child_processes.process import (
    Child,
    ProcessDiedError,
    ProcessStartError,
    ProcessTamperedError,
    ProcessTimeoutError,
)

_FIRST_MAKING_LIMIT_S = 120.0  # with its imports
_GRACE_S = 5.0
# What a call came to, in the words of a child, where the child itself is at fault.
WAITED = "it waited: for a server, or for a thread that importing it had started and that the fork of a call lacks"
_ENDINGS = {ProcessTimeoutError: "timeout", ProcessDiedError: "died", ProcessTamperedError: "tampered"}


class ScorerRaisedError(Exception):
    """The scorer raised; the message holds the error's type and text."""


class SubprocessScorer:
    """Computes scores in up to `size` child processes, from any thread, each in a fork of one of them.

    The children import and make what this process names, by pickle; the way back is JSON. See the module for
    what that fences.
    """

    def __init__(self, size: int) -> None:
        """Make the scorer; no process is started yet."""
        self._pool = ChildPool(size, "r3env.child_processes.scorer_child", "scorer")

    def call(
        self, maker: str, made_from: Sequence[Any], *arguments: Any, timeout_s: float, keep: bool = False
    ) -> float:
        """Compute the score of these arguments, a finite number.

        Args:
            maker: `module:name` of the function that makes the scorer, outside of the deadline. It runs in the child
                itself, not in the fork, so that it can keep what it makes.
            made_from: What the maker gets; nothing that a policy wrote.
            arguments: What the scorer gets.
            timeout_s: Seconds the scorer may take, from when a process that is ready takes it up.
            keep: Whether the fork may serve the next calls of the same scorer: only for one that runs nothing of its
                arguments as code, and whose score does not depend on earlier calls.

        Raises:
            ProcessTimeoutError: It took longer.
            ProcessDiedError: The process died or could not start.
            ProcessTamperedError: What came back is no score, in a child that had served nobody else: the call's own
                arguments must have got at the pipes.
            ScorerRaisedError: The maker or the scorer raised, or the score is not a finite number.
        """
        reply = self._reply(maker, made_from, arguments, timeout_s, keep)
        if "score" not in reply:
            raise ProcessTamperedError
        return float(reply["score"])

    def ask(
        self, maker: str, made_from: Sequence[Any], *arguments: Any, timeout_s: float, once: bool = False
    ) -> dict[str, Any]:
        """Return the mapping that the scorer returns: plain JSON data of at most 256 KB; see `call`.

        Args:
            maker: As of `call`.
            made_from: As of `call`.
            arguments: As of `call`.
            timeout_s: As of `call`.
            once: Whether the scorer has effects outside its fork. It is then never run a second time, also if
                something else spoiled its reply.

        Raises:
            ProcessTimeoutError, ProcessDiedError, ProcessTamperedError, ScorerRaisedError: as `call` does.
        """
        reply = self._reply(maker, made_from, arguments, timeout_s, once=once)
        if "plain" not in reply:
            raise ProcessTamperedError
        return dict(reply["plain"])

    def _reply(
        self,
        maker: str,
        made_from: Sequence[Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        keep: bool = False,
        once: bool = False,
    ) -> dict[str, Any]:
        request = maker, tuple(made_from), pickle.dumps(arguments), timeout_s, keep
        try:
            reply = self._pool.exchange(lambda child: _talk(child, request, timeout_s, once))
        except ProcessStartError as error:
            raise ProcessDiedError(str(error)) from error
        if "timeout" in reply:
            raise ProcessTimeoutError(WAITED if reply.get("idle") else "")
        if "died" in reply:
            raise ProcessDiedError("the process died")
        if "tampered" in reply:
            raise ProcessTamperedError
        if "raised" in reply:
            raise ScorerRaisedError(reply["raised"])
        return reply

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _talk(child: Child, request: tuple[Any, ...], timeout_s: float, once: bool) -> dict[str, Any]:
    """Return what the call came to, as the child says; the child is killed unless it can serve the next call."""
    raised = _make(child, request, timeout_s)
    if raised is not None:
        return raised
    try:
        reply = _run(child, timeout_s)
    except (ProcessTimeoutError, ProcessDiedError, ProcessTamperedError) as error:
        if not once:
            raise
        reply = {_ENDINGS[type(error)]: True}
    if "died" in reply or "tampered" in reply:
        child.kill()
    return reply


def _make(child: Child, request: tuple[Any, ...], timeout_s: float) -> dict[str, Any] | None:
    """Have the scorer made: that time is not the answer's. Return what was raised, or None.

    Nothing of the call itself runs before: a message without its nonce is somebody else's.
    """
    nonce, scorer = secrets.token_hex(16), pickle.dumps(request[:2])
    child.send(pickle.dumps((nonce, *request)), timeout_s + _GRACE_S)
    limit_s = timeout_s if scorer in child.made else max(timeout_s, _FIRST_MAKING_LIMIT_S)
    match _signed(child.receive(limit_s, _GRACE_S), "nonce", nonce):
        case {"made": True, **rest} if not rest and child.quiet:
            child.made.add(scorer)
            return None
        case {"raised": str(), **rest} as raised if not rest:
            return raised
    raise ProcessTamperedError


def _run(child: Child, timeout_s: float) -> dict[str, Any]:
    """Let the scorer that was made have its arguments; return the one reply with the token."""
    token = secrets.token_hex(16)
    child.send(token.encode(), timeout_s + _GRACE_S)
    reply = _signed(child.receive(timeout_s, _GRACE_S), "token", token)
    if not child.quiet:
        raise ProcessTamperedError
    match reply:
        case {"score": float(score), **rest} if not rest and math.isfinite(score):
            return reply
        case {"plain": dict(), **rest} | {"raised": str(), **rest} if not rest:
            return reply
        case {"timeout": True, "idle": bool(), **rest} | {"died": True, **rest} | {"tampered": True, **rest} if (
            not rest
        ):
            return reply
    raise ProcessTamperedError


def _signed(reply: dict[str, Any], name: str, secret: str) -> dict[str, Any]:
    """Return the other fields of a reply that holds a secret; raises ProcessTamperedError if it does not."""
    if not hmac.compare_digest(str(reply.pop(name, "")).encode(errors="replace"), secret.encode()):
        raise ProcessTamperedError
    return reply


@functools.cache
def shared_scorer() -> SubprocessScorer:
    """Return the scorer of this process; a forked process gets its own."""
    return SubprocessScorer(size=min(4, os.cpu_count() or 1))
