"""A task with long, branching answers: four numbers are combined to a target, as often as the limit allows.

    python -m benchmarks.evidence.search --out runs/bases/search

An answer is a search in plain sight. Each line takes two of the numbers that are left, three times; the last line
reaches the target and ends in `!`. The base is taught lines that are played at random, so that its entropy lies where a
move is chosen and is near zero where a result is computed. The problems to train and test on are those that random
lines rarely solve: most answers are truncated.

Writes the Hugging Face folder, `report.json`, `train.jsonl`, `dev.jsonl` and `heldout.jsonl`. About half an hour on one
core.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from r3env.assets.arithmetic import REFLECTION_GUIDANCE
from r3env.assets.build import new_model, warm_start
from r3env.assets.lessons import Example, fill_rows
from r3env.assets.report import Question, measure
from r3env.assets.tokenizer import build_tokenizer
from r3env.chat import first_turn

NUMBERS, LARGEST, HOW_MANY = range(1, 13), 99, 4
RESPONSE_LIMIT = 256
ROWS, ROW_TOKENS = 8, 576
# How likely a random line solves a problem that is trained or tested on.
RARE = (Fraction(1, 1000), Fraction(1, 50))
PROBLEMS = {"train": 96, "dev": 64, "heldout": 128}
# A problem is told by its numbers, smallest first, and the target.
Problem = tuple[tuple[int, ...], int]


def text_of(problem: Problem) -> str:
    """Return the problem as it is posed, such as `2 3 5 7>41`."""
    numbers, target = problem
    return f"{' '.join(map(str, numbers))}>{target}"


def moves(numbers: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """List what can be played: the equation, and the numbers that are then left, smallest first."""
    found = []
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if i == j:
                continue
            rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
            for sign, result in (("+", a + b), ("-", a - b), ("*", a * b)):
                if 0 <= result <= LARGEST:
                    found.append((f"{a}{sign}{b}={result}", tuple(sorted([*rest, result]))))
    return found


def random_line(rng: random.Random, numbers: tuple[int, ...]) -> tuple[str, int | None]:
    """Play at random; return the line and the last number, or None where no move was left."""
    played: list[str] = []
    while len(numbers) > 1:
        possible = moves(numbers)
        if not possible:
            return " ".join(played), None
        move, numbers = rng.choice(possible)
        played.append(move)
    return " ".join(played), numbers[0]


@cache
def chance(numbers: tuple[int, ...], target: int) -> Fraction:
    """Return how likely a random line reaches the target."""
    if len(numbers) == 1:
        return Fraction(numbers[0] == target)
    possible = moves(numbers)
    return sum((chance(left, target) for _, left in possible), Fraction(0)) / max(len(possible), 1)


def is_solved(problem: str, response: str) -> bool:
    """Return whether the last line of a finished response combines the problem's numbers to its target.

    A reward function of `r3env/Function-v0`.
    """
    line = response.rpartition("\n")[2]
    if not line.endswith("!"):
        return False
    given, target = problem.split(">")
    numbers = tuple(sorted(map(int, given.split())))
    for played in line[:-1].split(" "):
        left = dict(moves(numbers)).get(played)
        if left is None:
            return False
        numbers = left
    return numbers == (int(target),)


def random_search(rng: random.Random, problem: Problem) -> str:
    """Play lines at random until one solves the problem, or there are more than any limit holds."""
    numbers, target = problem
    lines: list[str] = []
    while len(lines) < RESPONSE_LIMIT // HOW_MANY:
        line, reached = random_line(rng, numbers)
        if reached == target:
            return "\n".join([*lines, f"{line}!"])
        lines.append(line)
    return "\n".join(lines)


def random_problem(rng: random.Random) -> Problem:
    """Draw numbers, and a target that a random line reached."""
    while True:
        numbers = tuple(sorted(rng.choices(NUMBERS, k=HOW_MANY)))
        _, target = random_line(rng, numbers)
        if target is not None:
            return numbers, target


def rare_problems(rng: random.Random) -> dict[str, list[Problem]]:
    """Draw problems for training and testing, all different, that a random line rarely solves."""
    drawn: dict[Problem, None] = {}
    while len(drawn) < sum(PROBLEMS.values()):
        problem = random_problem(rng)
        if RARE[0] <= chance(*problem) <= RARE[1]:
            drawn[problem] = None
    rest = iter(drawn)
    return {name: [next(rest) for _ in range(count)] for name, count in PROBLEMS.items()}


class Teacher:
    """Writes endless examples; never a problem that is tested on."""

    def __init__(self, tokenizer: Any, kept_from_it: frozenset[Problem], seed: int) -> None:
        self.tokenizer, self.kept_from_it, self.rng = tokenizer, kept_from_it, random.Random(seed)

    def example(self) -> Example:
        """Draw the next."""
        while (problem := random_problem(self.rng)) in self.kept_from_it:
            pass
        prompt = first_turn(self.tokenizer, [{"role": "user", "content": text_of(problem)}])
        tokens = self.tokenizer.encode(random_search(self.rng, problem), add_special_tokens=False)
        return Example(prompt, [*tokens, self.tokenizer.eos_token_id][:RESPONSE_LIMIT])

    def batches(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield batches without end: several examples per row, none seeing another."""
        while True:
            yield fill_rows(self.example, ROWS, ROW_TOKENS)


def main() -> None:
    """Make everything and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    problems = rare_problems(random.Random(arguments.seed))
    write(problems, arguments.out)
    tokenizer = build_tokenizer([*map(str, range(10, LARGEST + 1)), REFLECTION_GUIDANCE])
    model = new_model(tokenizer, hidden_size=192, layers=6, heads=6, intermediate_size=576)
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    teacher = Teacher(tokenizer, frozenset(problems["dev"] + problems["heldout"]), arguments.seed)
    warm_start(model, [(arguments.steps, teacher.batches())])
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    report = measure(model, tokenizer, [_question(problem) for problem in problems["dev"]], RESPONSE_LIMIT)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def write(problems: dict[str, list[Problem]], folder: Path) -> None:
    """Write a file of problems for each use, with how likely a random line solves each as its level."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in problems.items():
        rows = [
            {"uid": f"{name}-{index:03d}", "problem": text_of(one), "answer": str(one[1]), "level": str(_level(one))}
            for index, one in enumerate(drawn)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _question(problem: Problem) -> Question:
    return Question(text_of(problem), partial(is_solved, text_of(problem)), _level(problem))


def _level(problem: Problem) -> int:
    """Return how many random lines the problem takes, as a power of two."""
    return round(-math.log2(chance(*problem)))


if __name__ == "__main__":
    main()
