"""Easier forms of the embedded problems, in column `variants` of `train.jsonl`.

- `four_choice`, `ten_choice`: the sum, and numbers of which one is the answer. The embedded model reads no choices.
- `fill_in`: all but the last operations are done, and their result stands in their place.
"""

import random
import re

from r3env.assets.arithmetic import MAX_TOTAL

CHOICES = {"four_choice": 4, "ten_choice": 10}
LEFT = 3  # operations of a fill-in


def variants(problem: str, answer: str) -> dict[str, dict[str, str]]:
    """Make all forms of a sum; each has the sum's own answer."""
    forms = {name: choice(problem, answer, count) for name, count in CHOICES.items()} | {"fill_in": fill_in(problem)}
    return {name: {"problem": text, "answer": answer} for name, text in forms.items()}


def choice(problem: str, answer: str, count: int) -> str:
    """Pose a sum with `count` numbers of which one is its answer, the same ones every time."""
    rng = random.Random(f"{problem} {count}")
    wrong = [number for number in range(MAX_TOTAL + 1) if number != int(answer)]
    offered = [int(answer), *rng.sample(wrong, count - 1)]
    rng.shuffle(offered)
    return f"{problem}\nOne of {', '.join(map(str, offered))}."


def fill_in(problem: str) -> str:
    """Pose the rest of a sum after all but the last operations."""
    numbers = re.findall(r"[+-]?\d+", problem)
    done = max(1, len(numbers) - LEFT)
    return f"{sum(map(int, numbers[:done]))}{''.join(numbers[done:])}"
