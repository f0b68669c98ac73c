"""A process that one call left behind writes into the child's pipe: whenever that is, the next call has its answer."""

import contextlib
import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r3env.child_processes import frames
from r3env.child_processes.process import Child, ProcessTamperedError
from r3env.child_processes.subprocess_scorer import SubprocessScorer
from r3env.grading import grader
from tests.r3env.left_behind import tell


def framed(**fields: Any) -> bytes:
    body = json.dumps(fields).encode()
    return struct.pack("!i", len(body)) + body


FRAMES = {
    "a score": framed(score=1.0),
    "made": framed(made=True),
    "raised": framed(raised="no"),
    "a beginning": b"\x00\x00",
    "no body": struct.pack("!i", 1000),
    "too long": struct.pack("!i", 2**31 - 1) + b"x",
    "a negative length": struct.pack("!i", -7),
    "more than a pipe holds": b"\x00" * 60_000,
}


class Spoiled:
    """A pool of one child, in which one call has left a process behind that waits to write."""

    def __init__(self, folder: Path, frame: bytes) -> None:
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        self.folder, self.pool = str(folder), SubprocessScorer(size=1)
        pid = self.pool.call("tests.r3env.left_behind:make_leaver", (), self.folder, frame, timeout_s=60.0)
        (self.child,) = self.pool._pool._idle
        self.pid, self.told = int(pid), False
        assert self.pid == self.child._process.pid

    def next(self, when: str = "") -> float:
        return self.pool.call("tests.r3env.left_behind:make_teller", (self.folder, self.pid, when), timeout_s=60.0)

    def next_once(self, when: str = "") -> dict[str, Any]:
        maker = "tests.r3env.left_behind:make_counter"
        return self.pool.ask(maker, (self.folder, self.pid, when), timeout_s=60.0, once=True)

    def ran(self) -> int:
        return len((Path(self.folder) / "ran").read_text().splitlines())

    def tell(self) -> None:
        tell(self.folder)


@pytest.fixture
def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Spoiled]]:
    monkeypatch.setattr(frames, "_COMPLETE_WITHIN_S", 0.5)
    made = []

    def make(frame: str) -> Spoiled:
        made.append(Spoiled(tmp_path, FRAMES[frame]))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
        one.pool.close()


def at(child: Child, name: str, call: int, event: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen as the child is about to be sent (`send`) its n-th message, or has answered (`receive`)."""
    whole, calls = getattr(child, name), []

    def with_event(*arguments: Any) -> Any:
        calls.append(name)
        if name == "send" and len(calls) == call:
            event()
        result = whole(*arguments)
        if name == "receive" and len(calls) == call:
            event()
        return result

    monkeypatch.setattr(child, name, with_event)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_between_two_calls_ends_the_child_alone(spoil: Callable[[str], Spoiled], frame: str) -> None:
    spoiled = spoil(frame)
    spoiled.tell()
    assert spoiled.next() == 0.5
    assert not spoiled.child.alive


@pytest.mark.parametrize("frame", ["a score", "a beginning"])
@pytest.mark.parametrize(("name", "call"), [("send", 1), ("receive", 1), ("send", 2), ("receive", 2)], ids=str)
def test_a_frame_around_a_message_costs_the_next_call_nothing(
    spoil: Callable[[str], Spoiled], frame: str, name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = spoil(frame)
    at(spoiled.child, name, call, spoiled.tell, monkeypatch)
    assert spoiled.next() == 0.5
    assert not spoiled.child.alive
    assert spoiled.next() == 0.5


@pytest.mark.parametrize("frame", ["raised", "more than a pipe holds"])
@pytest.mark.parametrize("when", ["making", "scoring"])
def test_a_frame_while_the_child_works_costs_the_next_call_nothing(
    spoil: Callable[[str], Spoiled], frame: str, when: str
) -> None:
    spoiled = spoil(frame)
    assert spoiled.next(when) == 0.5
    assert not spoiled.child.alive


def test_a_call_with_effects_is_repeated_while_nothing_of_it_has_run(spoil: Callable[[str], Spoiled]) -> None:
    spoiled = spoil("made")
    assert spoiled.next_once("making") == {"score": 0.5}
    assert spoiled.ran() == 1


def test_a_call_with_effects_never_runs_twice(spoil: Callable[[str], Spoiled]) -> None:
    spoiled = spoil("a score")
    with pytest.raises(ProcessTamperedError):
        spoiled.next_once("scoring")
    assert spoiled.ran() == 1
    assert spoiled.next_once() == {"score": 0.5}


def test_a_call_that_forges_its_own_reply_is_refused_in_a_child_that_served_others_too() -> None:
    pool = SubprocessScorer(size=1)
    for _ in range(2):
        assert pool.call("functools:partial", (eval,), "0.5", timeout_s=60.0) == 0.5
        (child,) = pool._pool._idle
        with pytest.raises(ProcessTamperedError):
            pool.call("tests.r3env.left_behind:make_forger", (FRAMES["a score"],), timeout_s=60.0)
        assert not child.alive
    pool.close()


def test_a_kept_fork_that_died_costs_the_next_call_nothing() -> None:
    pool = SubprocessScorer(size=1)

    def fork() -> int:
        return int(pool.call("functools:partial", (eval, "__import__('os').getpid()"), timeout_s=60.0, keep=True))

    first = fork()
    (child,) = pool._pool._idle
    os.kill(first, signal.SIGKILL)
    second = fork()
    assert fork() == second != first
    assert child.alive
    pool.close()


def test_a_child_that_dies_before_it_answers_costs_nobody_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SubprocessScorer(size=1)
    for name, call in (("send", 1), ("send", 2), ("receive", 1)):
        assert pool.call("functools:partial", (eval,), "0.25", timeout_s=60.0) == 0.25
        (child,) = pool._pool._idle
        at(child, name, call, child.kill, monkeypatch)
        assert pool.call("functools:partial", (eval,), "0.5", timeout_s=60.0) == 0.5
    pool.close()


def test_a_grader_that_dies_before_it_answers_costs_nobody_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    grader.close()
    assert grader.compare_in_grader("1", "1", 60.0) == (True, False)
    child = grader._shared_pool()._idle[0]
    at(child, "send", 1, child.kill, monkeypatch)
    assert grader.compare_in_grader("1", "1", 60.0) == (True, False)
    assert not child.alive
