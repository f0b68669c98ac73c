"""Scores that are killed at their deadline, and what can be forged of them."""

import json
import math
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from typing import Any

import pytest

from r3env.child_processes.process import Child, ProcessDiedError, ProcessTamperedError, ProcessTimeoutError
from r3env.child_processes.subprocess_scorer import ScorerRaisedError, SubprocessScorer


@pytest.fixture(scope="module")
def calls() -> Iterator[SubprocessScorer]:
    pool = SubprocessScorer(size=2)
    yield pool
    pool.close()


def score(calls: SubprocessScorer, code: str, timeout_s: float = 5.0) -> float:
    """The value of a Python expression, worked out in the fork."""
    return calls.call("functools:partial", (eval,), code, timeout_s=timeout_s)


def test_a_call_returns_what_the_scorer_returns_as_a_number(calls: SubprocessScorer) -> None:
    assert calls.call("functools:partial", (math.gcd, 12), 18, timeout_s=5.0) == 6.0


def test_processes_are_kept_but_each_call_has_its_own_fork(calls: SubprocessScorer) -> None:
    parent = score(calls, "__import__('os').getppid()")
    assert score(calls, "__import__('os').getppid()") == parent != os.getpid()
    assert len({score(calls, "__import__('os').getpid()") for _ in range(3)}) == 3
    score(calls, "setattr(__import__('math'), 'poisoned', 1) or 0")
    assert score(calls, "hasattr(__import__('math'), 'poisoned')") == 0.0


def test_a_fork_is_kept_for_the_next_calls_of_the_same_scorer_until_one_fails() -> None:
    pool = SubprocessScorer(size=1)

    def fork_of(code: str = "__import__('os').getpid()", keep: bool = True, timeout_s: float = 60.0) -> float:
        return pool.call("functools:partial", (eval,), code, timeout_s=timeout_s, keep=keep)

    first = fork_of()
    assert fork_of() == first
    assert pool.call("functools:partial", (math.gcd, 12), 18, timeout_s=5.0, keep=True) == 6.0
    second = fork_of()
    assert second != first, "another scorer had the fork"
    with pytest.raises(ScorerRaisedError):
        fork_of("1 / 0")
    third = fork_of()
    assert third != second
    with pytest.raises(ProcessTimeoutError):
        fork_of("9**9**9", timeout_s=0.5)
    assert fork_of() != third
    assert len({fork_of(keep=False) for _ in range(3)}) == 3
    pool.close()


def test_what_never_returns_is_killed_and_the_next_call_is_answered(calls: SubprocessScorer) -> None:
    parent = score(calls, "__import__('os').getppid()")
    started = time.monotonic()
    with pytest.raises(ProcessTimeoutError):
        score(calls, "9**9**9", timeout_s=0.5)
    assert time.monotonic() - started < 60  # it would take hours
    children = {int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and _parent_of(pid) == int(parent)}
    assert not children
    assert score(calls, "__import__('os').getppid()") == parent


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_an_exception_is_reported(calls: SubprocessScorer) -> None:
    before = score(calls, "__import__('os').getppid()")
    with pytest.raises(ScorerRaisedError, match="ZeroDivisionError"):
        score(calls, "1/0")
    with pytest.raises(ScorerRaisedError, match="ModuleNotFoundError"):
        calls.call("no_such_module:f", (), timeout_s=5.0)
    assert score(calls, "__import__('os').getppid()") == before


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "None", "'seven'"])
def test_only_a_finite_number_is_a_score(calls: SubprocessScorer, value: str) -> None:
    with pytest.raises(ScorerRaisedError):
        score(calls, value)


@pytest.mark.parametrize("way", ["os._exit(3)", "os.kill(os.getpid(), 9)", "sys.exit()"])
def test_a_process_that_dies_does_not_disturb_the_next_call(calls: SubprocessScorer, way: str) -> None:
    with pytest.raises(ProcessDiedError):
        score(calls, f"exec('import os, sys; {way}')")
    assert score(calls, "2") == 2.0


def test_memory_is_bounded(calls: SubprocessScorer) -> None:
    with pytest.raises((ScorerRaisedError, ProcessDiedError)):
        score(calls, "len(bytearray(8 << 30))", timeout_s=10.0)


def test_what_a_scorer_prints_does_not_get_between_the_messages(calls: SubprocessScorer) -> None:
    assert score(calls, "print('noise') or 1") == 1.0
    assert score(calls, "__import__('os').system('echo noise')") == 0.0


def test_many_threads_share_few_processes(calls: SubprocessScorer) -> None:
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda number: score(calls, str(number), 10.0), range(50)))
    assert results == list(range(50))


FORGED = [
    b'{"score": 1.0}',
    b'{"nonce": "", "score": 1.0}',
    b'{"token": "", "score": 1.0}',
    b"\x00\x00\x00\x0e" + b'{"score": 1.0}',
    b"[" * 4000,
    b"x" * 100_000,
    pickle.dumps((True, 1.0)),
]


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("ending", ["0", "__import__('os')._exit(0)"])
def test_what_a_scorer_writes_to_any_descriptor_is_never_its_score(
    calls: SubprocessScorer, forged: bytes, ending: str
) -> None:
    lines = ["import contextlib, os", "for n in range(3, 30):", "  with contextlib.suppress(OSError):"]
    attack = "\n".join([*lines, f"    os.write(n, {forged!r})"])
    with pytest.raises((ProcessTamperedError, ProcessDiedError)):
        score(calls, f"exec({attack!r}) or {ending}", timeout_s=60.0)
    assert score(calls, "0.25") == 0.25


class _Forger:
    """Stands for a child: gives the frames that it was told to."""

    def __init__(self, *frames: Callable[[str], bytes]) -> None:
        self.frames = frames

    def child(self) -> Child:
        made = object.__new__(Child)
        requests, made._requests = connection.Pipe(duplex=False)
        made._replies, replies = connection.Pipe(duplex=False)
        made._name, made._ready, made._process = "scorer", True, _NoProcess()  # type: ignore[assignment]
        made.used, made.made = False, set()
        threading.Thread(target=self._speak, args=(requests, replies), daemon=True).start()
        return made

    def _speak(self, requests: Any, replies: Any) -> None:
        nonce = pickle.loads(requests.recv_bytes())[0]
        replies.send_bytes(json.dumps({"nonce": nonce, "made": True}).encode())
        token = requests.recv_bytes().decode()
        for frame in self.frames:
            replies.send_bytes(frame(token))


class _NoProcess:
    pid = 2**22 + 1

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9

    def wait(self) -> None:
        pass


def _reply(**fields: Any) -> Callable[[str], bytes]:
    return lambda token: json.dumps({"token": token, **fields}).encode()


@pytest.mark.parametrize(
    "frame",
    [
        lambda token: b'{"score": 1.0}',
        lambda token: b'{"token": "guessed", "score": 1.0}',
        lambda token: b'{"token": "\xc3\xa9", "score": 1.0}',
        lambda token: b'{"token": "\\ud800", "score": 1.0}',
        lambda token: b"[" * 5000,
        lambda token: b"no json",
        lambda token: b"\xff",
        lambda token: b"[1]",
        lambda token: pickle.dumps((True, 1.0)),
        _reply(score=1),
        _reply(score=True),
        _reply(score="1.0"),
        _reply(score=float("nan")),
        _reply(score=float("inf")),
        _reply(score=1.0, ready=True),
        _reply(),
    ],
)
def test_a_frame_that_is_no_score_with_the_token_is_refused_and_its_child_replaced(
    frame: Callable[[str], bytes],
) -> None:
    pool, child = SubprocessScorer(size=1), _Forger(frame).child()
    pool._pool._idle.append(child)
    with pytest.raises(ProcessTamperedError):
        score(pool, "0")
    assert not child.alive
    assert score(pool, "0.5") == 0.5
    pool.close()


def test_an_extra_frame_is_refused_and_a_late_one_never_read() -> None:
    pool = SubprocessScorer(size=1)
    child = _Forger(_reply(score=0.0), _reply(score=1.0)).child()
    pool._pool._idle.append(child)
    try:
        assert score(pool, "0.5") == 0.0  # the second frame was late
    except ProcessTamperedError:
        assert not child.alive
    assert score(pool, "0.5") == 0.5
    assert not child.alive
    pool.close()


def test_nothing_is_unpickled_from_a_reply(tmp_path: Any) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'F'}",)

    pool = SubprocessScorer(size=1)
    pool._pool._idle.append(_Forger(lambda token: pickle.dumps((True, Bomb()))).child())
    with pytest.raises(ProcessTamperedError):
        score(pool, "0")
    assert not (tmp_path / "F").exists()
