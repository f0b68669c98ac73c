"""Questions with options as problems: lettered options below the question."""

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

Row = Mapping[str, Any]


def gpqa(row: Row) -> dict[str, Any]:
    """Pose a row of GPQA, whose columns separate the correct option from the three others.

    The order of the options is shuffled by the question, so that a problem is the same in every run.
    """
    question = row["Question"]
    if not isinstance(question, str):
        return {"Question": None}
    correct = row["Correct Answer"]
    options = [correct, *(row[f"Incorrect Answer {number}"] for number in (1, 2, 3))]
    seed = int.from_bytes(hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:8])
    random.Random(seed).shuffle(options)
    return {"Question": posed(question, options), "answer": ascii_uppercase[options.index(correct)]}


def mmlu_pro(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU-Pro, whose `options` are a list of up to ten, and whose `answer` is a letter."""
    if not isinstance(row["question"], str) or not isinstance(row["options"], Sequence):
        return {"question": None}
    return {"question": posed(row["question"], row["options"])}


def aqua(row: Row) -> dict[str, Any]:
    """Pose a row of AQuA, whose `options` are lettered already, `A)21`, and whose `correct` is a letter."""
    options = [re.sub(r"^[A-Z]\)\s*", "", str(option)) for option in row["options"]]
    return {"question": posed(row["question"], options)}


def mmlu(row: Row) -> dict[str, Any]:
    """Pose a row of MMLU, whose `choices` are a list, and whose `answer` is a place in it from 0."""
    answer, options = row["answer"], row["choices"]
    letter = ascii_uppercase[answer] if isinstance(answer, int) and 0 <= answer < len(options) else answer
    return {"question": posed(row["question"], options), "answer": letter}


def arc(row: Row) -> dict[str, Any]:
    """Pose a row of ARC, whose `choices` hold `text` and `label`; some labels are digits, which become letters."""
    texts, labels = row["choices"]["text"], list(row["choices"]["label"])
    key = row["answerKey"]
    return {"question": posed(row["question"], texts), "answerKey": ascii_uppercase[labels.index(key)]}


def posed(question: str, options: Sequence[Any]) -> str:
    """Return the question with its options below it, one a line."""
    lettered = [f"{letter}) {str(option).strip()}" for letter, option in zip(ascii_uppercase, options, strict=False)]
    return f"{question.strip()}\n\n" + "\n".join(lettered)
