"""The lessons of the embedded model before RL: worked problems, and second turns after failed attempts."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import Qwen2Tokenizer

from benchmarks.embedded_model import arithmetic
from benchmarks.embedded_model.arithmetic import REFLECTION_GUIDANCE, Chain
from r3env.chat import first_turn, next_turn

RESPONSE_LIMIT = 48
ROW_TOKENS = 128


@dataclass(frozen=True)
class Lesson:
    """One stage of the warm start.

    Args:
        steps: optimizer steps.
        lengths: numbers in a problem.
        reflection: share of examples that are second turns.
        ways: shares of running, remainder and guess.
    """

    steps: int
    lengths: range
    reflection: float
    ways: tuple[float, float, float]


@dataclass(frozen=True)
class Example:
    """A prompt and the response to learn, as tokens."""

    prompt: list[int]
    response: list[int]


class Teacher:
    """Writes endless examples; never one of the problems that are held out."""

    def __init__(self, tokenizer: Qwen2Tokenizer, held_out: set[str], seed: int) -> None:
        self.tokenizer, self.held_out, self.rng = tokenizer, held_out, random.Random(seed)

    def example(self, lesson: Lesson) -> Example:
        """Return the next example of a lesson: a plain one or a second turn."""
        chain = arithmetic.random_chain(self.rng, self.rng.choice(lesson.lengths))
        if str(chain) in self.held_out:
            return self.example(lesson)
        prompt = first_turn(self.tokenizer, [{"role": "user", "content": str(chain)}])
        if self.rng.random() >= lesson.reflection:
            return Example(prompt, self._tokens(self._work(chain, lesson, None)))
        attempt = self._failed_attempt(chain, lesson)
        second = next_turn(self.tokenizer, attempt, REFLECTION_GUIDANCE)
        return Example(prompt + attempt + second, self._tokens(self._second_try(chain, attempt)))

    def batches(self, lesson: Lesson, rows: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield endless batches of `rows` rows, several separate examples per row."""
        while True:
            yield fill_rows(lambda: self.example(lesson), rows, ROW_TOKENS)

    def _work(self, chain: Chain, lesson: Lesson, totals: Sequence[int] | None) -> str:
        draw = self.rng.random()
        if draw < lesson.ways[0]:
            return arithmetic.running(chain, totals)
        if draw < lesson.ways[0] + lesson.ways[1]:
            return arithmetic.remainder(chain, totals)
        return arithmetic.guess(chain, self.rng)

    def _failed_attempt(self, chain: Chain, lesson: Lesson) -> list[int]:
        """Work that is cut off by the limit or ends in a wrong answer."""
        while True:
            slipped = self.rng.random() < 0.4
            totals = arithmetic.slipped_totals(chain, self.rng) if slipped else None
            tokens = self._tokens(self._work(chain, lesson, totals))
            if not slipped and self._cut_off(tokens):
                return tokens
            text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
            if not self._cut_off(tokens) and not text.endswith(f"{{{chain.answer}}}"):
                return tokens

    def _second_try(self, chain: Chain, attempt: Sequence[int]) -> str:
        """Go on where a cut-off remainder stopped; start afresh after anything else."""
        text = str(self.tokenizer.decode(list(attempt), skip_special_tokens=True))
        is_running = text.startswith(f"{chain.first}{chain.terms[0]:+d}=")
        rest = None if is_running else arithmetic.left_to_do(text)
        return arithmetic.remainder(rest or chain)

    def _tokens(self, work: str) -> list[int]:
        tokens = self.tokenizer.encode(work, add_special_tokens=False)
        return [*tokens, self.tokenizer.eos_token_id][:RESPONSE_LIMIT]

    def _cut_off(self, tokens: Sequence[int]) -> bool:
        return tokens[-1] != self.tokenizer.eos_token_id


def fill_rows(draw: Callable[[], Example], rows: int, row_tokens: int) -> tuple[torch.Tensor, ...]:
    """Draw examples until rows of `row_tokens` are nearly full; see `_pack` for the tensors."""
    bins: list[list[Example]] = [[] for _ in range(rows)]
    room = [row_tokens] * rows
    misses = 0
    while misses < 6:
        example = draw()
        size = len(example.prompt) + len(example.response)
        index = next((i for i in range(rows) if room[i] >= size), None)
        if index is None:
            misses += 1
        else:
            bins[index].append(example)
            room[index] -= size
    return _pack(bins, row_tokens)


def _pack(bins: Sequence[Sequence[Example]], row_tokens: int) -> tuple[torch.Tensor, ...]:
    """Tokens, labels (-100 off the responses), positions [B, T] and a mask [B, 1, T, T]."""
    shape = (len(bins), row_tokens)
    tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels, owner = torch.full(shape, -100), torch.full(shape, -1)
    for row, examples in enumerate(bins):
        start = 0
        for index, example in enumerate(examples):
            middle, end = start + len(example.prompt), start + len(example.prompt) + len(example.response)
            tokens[row, start:end] = torch.tensor(example.prompt + example.response)
            labels[row, middle:end] = tokens[row, middle:end]
            positions[row, start:end] = torch.arange(end - start)
            owner[row, start:end] = index
            start = end
    causal = torch.ones(row_tokens, row_tokens, dtype=torch.bool).tril()
    mask = (owner[:, :, None] == owner[:, None, :]) & causal
    return tokens, labels, positions, mask[:, None]
