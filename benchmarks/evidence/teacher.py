"""Training examples of a base: it mostly fails alone, and does better after a failed attempt."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import Qwen2Tokenizer

from benchmarks.evidence.tasks import Problem, Task
from r3env.assets.arithmetic import REFLECTION_GUIDANCE
from r3env.assets.lessons import Example, fill_rows
from r3env.chat import first_turn, next_turn

ROW_TOKENS = 192


@dataclass(frozen=True)
class Lesson:
    """One stage of the warm start.

    Args:
        steps: optimizer steps.
        reflection: share of examples that are second turns; those work in the short way.
        ways: shares of the short, the long and the hasty way in first turns.
    """

    steps: int
    reflection: float
    ways: tuple[float, float, float]


class Teacher:
    """Writes endless examples of a task; never a problem of `held_out`."""

    def __init__(self, tokenizer: Qwen2Tokenizer, task: Task, held_out: frozenset[str], seed: int) -> None:
        self.tokenizer, self.task, self.held_out, self.rng = tokenizer, task, held_out, random.Random(seed)

    def batches(self, lesson: Lesson, rows: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield batches of `rows` rows without end: several examples per row, none seeing another."""
        while True:
            yield fill_rows(lambda: self.example(lesson), rows, ROW_TOKENS)

    def example(self, lesson: Lesson) -> Example:
        """Return the next example of a lesson: a plain one or a second turn."""
        problem = self.task.problem(self.rng, self.rng.choice(self.task.sizes))
        if problem.text in self.held_out:
            return self.example(lesson)
        prompt = first_turn(self.tokenizer, [{"role": "user", "content": problem.text}])
        if self.rng.random() >= lesson.reflection:
            (work,) = self.rng.choices((problem.short, problem.long, problem.hasty), lesson.ways)
            return Example(prompt, self._tokens(work))
        attempt = self._failed_attempt(problem, lesson)
        second = next_turn(self.tokenizer, attempt, REFLECTION_GUIDANCE)
        return Example(prompt + attempt + second, self._tokens(problem.short))

    def _failed_attempt(self, problem: Problem, lesson: Lesson) -> list[int]:
        """Return a failed attempt of the lesson; a long one fails only where the limit truncates it."""
        long = self._tokens(problem.long)
        is_cut_off = long[-1] != self.tokenizer.eos_token_id
        shares = (max(lesson.ways[0], 0.1), lesson.ways[1] * is_cut_off, lesson.ways[2])
        (attempt,) = self.rng.choices((self._tokens(problem.slipped), long, self._tokens(problem.hasty)), shares)
        return attempt

    def _tokens(self, work: str) -> list[int]:
        tokens = self.tokenizer.encode(work, add_special_tokens=False)
        return [*tokens, self.tokenizer.eos_token_id][: self.task.response_limit]
