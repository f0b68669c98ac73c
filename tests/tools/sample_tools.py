"""Tools of the tests, as a user would write them."""

import asyncio
import os
import time
from typing import Literal

calls_so_far = 0


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


def greet(name: str | None = None, how: Literal["hello", "bye"] = "hello") -> dict[str, str]:
    """Greet somebody.

    Args:
        name: Whom.
        how: In which words.
    """
    return {how: name or "you"}


async def wait(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "done"


def compute() -> str:
    """Compute for ever, without giving way to anything else."""
    return str(9**9**9)


def leave() -> str:
    """End the process."""
    os._exit(3)


def fail(text: str) -> str:
    """Raise an error.

    Args:
        text: Its text.
    """
    print("printing does no harm")
    raise KeyError(text)


def speak(length: int) -> str:
    """Say much.

    Args:
        length: How much.
    """
    return "\udc80é😀\n" * length


def count() -> int:
    """Count the calls so far."""
    global calls_so_far
    calls_so_far += 1
    return calls_so_far


def stop() -> None:
    """Stop the process politely."""
    raise SystemExit("stopped")


def undescribed(a: int) -> int:
    return a


def untyped(a):
    """Take something.

    Args:
        a: Something.
    """
    return time.time()


def positional(a: int, /) -> int:
    """Take something by position.

    Args:
        a: Something.
    """
    return a


def used_tools(response: str, answer: str, tool_calls: int = 0, failed_tool_calls: int = 0) -> float:
    """Reward a correct answer, and that the episode had two calls, of which one failed."""
    return float(answer in response) + 0.1 * tool_calls + 0.01 * failed_tool_calls
