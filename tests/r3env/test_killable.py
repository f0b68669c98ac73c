"""Calls that are killed at their deadline."""

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from r3env.killable import CallDiedError, CallRaisedError, CallTimeoutError, KillableCalls


@pytest.fixture(scope="module")
def calls() -> Iterator[KillableCalls]:
    pool = KillableCalls(size=2)
    yield pool
    pool.close()


def test_a_call_returns_what_the_function_returns(calls: KillableCalls) -> None:
    assert calls.call("math:gcd", 12, 18, timeout_s=5.0) == 6


def test_processes_are_kept(calls: KillableCalls) -> None:
    first = calls.call("os:getpid", timeout_s=5.0)
    assert calls.call("os:getpid", timeout_s=5.0) == first != os.getpid()


def test_what_never_returns_is_killed_and_the_next_call_is_answered(calls: KillableCalls) -> None:
    hung = calls.call("os:getpid", timeout_s=5.0)
    started = time.monotonic()
    with pytest.raises(CallTimeoutError):
        calls.call("builtins:eval", "9**9**9", timeout_s=0.5)
    assert time.monotonic() - started < 30  # of which starting a process is no part of the deadline
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert calls.call("math:gcd", 4, 6, timeout_s=5.0) == 2


def test_an_exception_is_told(calls: KillableCalls) -> None:
    before = calls.call("os:getpid", timeout_s=5.0)
    with pytest.raises(CallRaisedError, match="ZeroDivisionError"):
        calls.call("builtins:eval", "1/0", timeout_s=5.0)
    with pytest.raises(CallRaisedError, match="ModuleNotFoundError"):
        calls.call("no_such_module:f", timeout_s=5.0)
    assert calls.call("os:getpid", timeout_s=5.0) == before


def test_a_process_that_dies_is_replaced(calls: KillableCalls) -> None:
    with pytest.raises(CallDiedError):
        calls.call("os:_exit", 3, timeout_s=5.0)
    assert calls.call("math:gcd", 4, 6, timeout_s=5.0) == 2


def test_memory_is_bounded(calls: KillableCalls) -> None:
    with pytest.raises((CallRaisedError, CallDiedError)):
        calls.call("builtins:bytearray", 8 << 30, timeout_s=10.0)


def test_what_a_function_prints_does_not_get_between_the_messages(calls: KillableCalls) -> None:
    assert calls.call("builtins:print", "noise", timeout_s=5.0) is None
    assert calls.call("os:system", "echo noise", timeout_s=5.0) == 0


def test_many_threads_share_few_processes(calls: KillableCalls) -> None:
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda number: calls.call("math:factorial", number, timeout_s=10.0), range(50)))
    assert results == [math.factorial(number) for number in range(50)]
