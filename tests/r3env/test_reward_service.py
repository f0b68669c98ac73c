"""Reward functions that stay: concurrency, batches, retries, a rate and time limits, without Ray."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r3env.envs.function_loading import load
from r3env.envs.reward_service import RewardService

FUNCTIONS = """
import asyncio, threading

calls, batches, loads = [], [], []
together = threading.Barrier(3)
released = threading.Event()

class Pool:
    def __init__(self):
        loads.append(1)
        self.running = 0
    async def __call__(self, response):
        self.running += 1
        calls.append(self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        return 0.5

class Broken:
    def __init__(self):
        loads.append(1)
        raise OSError("no such model")
    def __call__(self, response):
        return 1.0

class Model:
    def __call__(self, completions, answer, **kwargs):
        batches.append(len(completions))
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

def meets(response):
    together.wait(30)
    return 1.0

def fails_twice(response):
    calls.append(response)
    if len(calls) < 3:
        raise ConnectionError("503")
    return 1.0

async def waits(response):
    calls.append(response)
    await asyncio.sleep(3600 if response == "long" else 0)
    return 1.0

def blocks(response):
    if response == "long":
        released.wait(60)
    return 1.0

def too_many(completions, **kwargs):
    return [1.0] * (len(completions) + 1)

def some(completions, **kwargs):
    return [None if text == "none" else float("nan") if text == "nan" else 0.0 for text in completions]

async def two(response):
    return 2.0
"""


@pytest.fixture
def noted(tmp_path: Path) -> dict[str, Any]:
    """What the functions note: the names of their module."""
    (tmp_path / "served.py").write_text(FUNCTIONS)
    found: dict[str, Any] = load(f"{tmp_path}/served.py:meets").function.__globals__  # type: ignore[attr-defined]
    return found


@pytest.fixture
def serve(tmp_path: Path, noted: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Judges responses together by functions of that module, each with the answer "2"."""
    monkeypatch.setattr("r3env.envs.reward_service._BACKOFF_S", 0.001)

    def serve(functions: str, responses: list[str], timeout_s: float = 60.0, **limits: Any) -> list[dict[str, Any]]:
        names = tuple(f"{tmp_path}/served.py:{name}" for name in functions.split())
        made_from = names, (1.0,) * len(names), 1.0, None

        async def together() -> list[dict[str, Any]]:
            service = RewardService(**{"concurrency": 8, "retries": 2, **limits})
            rows = [{"problem": "1+1?", "answer": "2", "response": response} for response in responses]
            return list(await asyncio.gather(*(service.judge(made_from, row, "1+1?", [], timeout_s) for row in rows)))

        return asyncio.run(together())

    return serve


def scores(found: list[dict[str, Any]]) -> list[float]:
    return [each["score"] for each in found]


def test_a_class_is_made_once_and_its_coroutines_run_together_up_to_the_concurrency(serve: Any, noted: Any) -> None:
    assert scores(serve("Pool", ["a"] * 40, concurrency=16)) == [0.5] * 40
    assert max(noted["calls"]) == 16 and len(noted["loads"]) == 1


def test_functions_that_block_run_in_threads_together(serve: Any) -> None:
    assert scores(serve("meets", ["a"] * 3, concurrency=3)) == [1.0] * 3


def test_completions_come_in_batches_of_at_most_the_concurrency(serve: Any, noted: Any) -> None:
    found = serve("Model", ["2", "3"] * 10, concurrency=8)
    assert scores(found) == [1.0, 0.0] * 10 and [each["correct"] for each in found] == [True, False] * 10
    assert noted["batches"] == [8, 8, 4]


def test_several_functions_judge_beside_each_other(serve: Any) -> None:
    (found,) = serve("two Model", ["2"])
    assert (found["score"], found["rewards"]) == (3.0, {"two": 2.0, "Model": 1.0})


def test_a_call_that_raises_is_repeated(serve: Any, noted: Any) -> None:
    assert scores(serve("fails_twice", ["a"], retries=2)) == [1.0] and len(noted["calls"]) == 3
    noted["calls"].clear()
    (found,) = serve("fails_twice", ["a"], retries=1)
    assert found["reason"] == "error" and "fails_twice: ConnectionError: 503 (served.py, line" in found["feedback"]


def test_a_call_that_takes_too_long_is_not_repeated_and_the_others_are_judged(serve: Any, noted: Any) -> None:
    found = serve("waits", ["long", "a", "b"], timeout_s=2.0)
    assert [each["reason"] for each in found] == ["timeout", "equal", "equal"] and len(noted["calls"]) == 3
    assert found[0]["feedback"].endswith("waits took longer than 2 s (environment.grading_timeout_s)")


def test_threads_that_never_return_leave_room_until_all_of_them_are_stuck(serve: Any, noted: Any) -> None:
    stuck: list[bool] = []
    found = serve("blocks", ["long", "a", "b"], timeout_s=2.0, concurrency=2, on_stuck=lambda: stuck.append(True))
    assert [each["reason"] for each in found] == ["timeout", "equal", "equal"] and not stuck
    serve("blocks", ["long", "long"], timeout_s=0.5, concurrency=2, on_stuck=lambda: stuck.append(True))
    noted["released"].set()
    assert stuck == [True]


def test_a_class_that_cannot_be_made_is_tried_once_and_is_every_responses_error(serve: Any, noted: Any) -> None:
    found = serve("Broken", ["a"] * 4)
    assert {each["reason"] for each in found} == {"error"} and len(noted["loads"]) == 1
    assert "Broken: making it fails: OSError: no such model" in found[0]["feedback"]


def test_of_a_batch_each_response_has_its_own_outcome_unless_their_number_is_wrong(serve: Any) -> None:
    found = serve("some", ["none", "nan", "zero"])
    assert [each["reason"] for each in found] == ["ungraded", "error", "different"] and found[2]["score"] == 0.0
    assert "not finite" in found[1]["feedback"]
    found = serve("too_many", ["a", "b"], retries=0)
    assert all("returned 3 rewards for 2 completions" in each["feedback"] for each in found)


def test_a_rate_spreads_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def pace() -> None:
        service, now = RewardService(concurrency=1, retries=0, rate=4.0), asyncio.get_running_loop().time
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        for _ in range(4):
            await service.pace()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", now)

    asyncio.run(pace())
    assert waits == [0.25, 0.5, 0.75]
