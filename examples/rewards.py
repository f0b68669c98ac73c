"""Reward functions for `r3env/Function-v0`: one by name, one with partial credit, one as TRL calls it."""

import re
from typing import Any


def last_number(response: str, answer: str) -> bool:
    """Return whether the response's last whole number is the answer."""
    return re.findall(r"-?\d+", response)[-1:] == [answer]


def closeness(response: str, answer: str, tolerance: float = 10.0) -> float:
    """Return 1 for the answer, less the further the last whole number is from it, and 0 from `tolerance` on.

    A column `tolerance` of the data is taken where a row has one.
    """
    numbers = re.findall(r"-?\d+", response)
    if not numbers:
        return 0.0
    return max(0.0, 1.0 - abs(int(numbers[-1]) - int(answer)) / tolerance)


def boxed_answer(completions: list[list[dict[str, str]]], answer: list[str], **kwargs: Any) -> list[float]:
    """Return 1 if the answer is in a box; written for TRL, which passes lists of messages."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if f"\\boxed{{{gold}}}" in content else 0.0 for content, gold in zip(contents, answer, strict=True)]


def short(completions: list[str], **kwargs: Any) -> list[float]:
    """Return a small reward for an answer below 200 characters; written for TRL with data of plain text."""
    return [1.0 if len(completion) < 200 else 0.0 for completion in completions]
