"""Measure what the embedded model can do before RL, and how much a failed attempt in its context helps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Tokenizer

from benchmarks.embedded_model.arithmetic import REFLECTION_GUIDANCE
from r3env.chat import first_turn, next_turn
from r3env.grading import grade

SAMPLES = 8
BATCH = 256
# Which problems are asked again, by how often they were solved.
SECOND_TRIES = {"problems missed at least once": range(SAMPLES), "problems missed every time": range(1)}


@dataclass(frozen=True)
class Question:
    """A prompt, its correct answer, and the size of the problem."""

    text: str
    answer: str
    size: int


def measure(model: Any, tokenizer: Qwen2Tokenizer, problems: Sequence[Question], limit: int) -> dict[str, Any]:
    """Measure pass@1, pass@8, truncation at `limit` tokens, and pass@1 again on problems that the model failed.

    Those are asked once more bare, after one of the model's own failed attempts, after an empty attempt, and after a
    failed attempt at another problem: a model that uses what the attempt says does best after its own.
    """
    prompts = [first_turn(tokenizer, [{"role": "user", "content": question.text}]) for question in problems]
    responses = sample(model, tokenizer, [prompt for prompt in prompts for _ in range(SAMPLES)], limit)
    grid = [responses[i * SAMPLES : (i + 1) * SAMPLES] for i in range(len(problems))]
    solved = [[_correct(tokenizer, one, r) for r in row] for one, row in zip(problems, grid, strict=True)]
    counts = [sum(row) for row in solved]
    return {
        "pass@1": sum(counts) / (len(counts) * SAMPLES),
        "pass@8": sum(count > 0 for count in counts) / len(counts),
        "never_solved": sum(count == 0 for count in counts) / len(counts),
        "truncated": sum(r[-1] != tokenizer.eos_token_id for r in responses) / len(responses),
        "pass@1_by_length": _by_length(problems, counts),
        "second_try": {
            name: _second_tries(model, tokenizer, problems, prompts, grid, solved, allowed, limit)
            for name, allowed in SECOND_TRIES.items()
        },
    }


def _second_tries(
    model: Any,
    tokenizer: Qwen2Tokenizer,
    problems: Sequence[Question],
    prompts: Sequence[list[int]],
    grid: Sequence[Sequence[list[int]]],
    solved: Sequence[Sequence[bool]],
    allowed: range,
    limit: int,
) -> dict[str, float]:
    """Pass@1 on the problems solved an `allowed` number of times, in four contexts."""
    chosen = [i for i, row in enumerate(solved) if sum(row) in allowed]
    failures = [grid[i][solved[i].index(False)] for i in chosen]
    others = failures[len(failures) // 2 :] + failures[: len(failures) // 2]
    contexts = {
        "bare": [prompts[i] for i in chosen],
        "own attempt": [_second_turn(tokenizer, prompts[i], a) for i, a in zip(chosen, failures, strict=True)],
        "empty attempt": [_second_turn(tokenizer, prompts[i], []) for i in chosen],
        "another's attempt": [_second_turn(tokenizer, prompts[i], a) for i, a in zip(chosen, others, strict=True)],
    }
    result: dict[str, float] = {"problems": len(chosen)}
    for name, asked in contexts.items():
        responses = sample(model, tokenizer, [prompt for prompt in asked for _ in range(SAMPLES)], limit)
        right = [_correct(tokenizer, problems[chosen[i // SAMPLES]], r) for i, r in enumerate(responses)]
        result[name] = sum(right) / max(len(right), 1)
    return result


def _second_turn(tokenizer: Qwen2Tokenizer, prompt: list[int], attempt: list[int]) -> list[int]:
    return prompt + attempt + next_turn(tokenizer, attempt, REFLECTION_GUIDANCE)


def _correct(tokenizer: Qwen2Tokenizer, question: Question, response: list[int]) -> bool:
    text = str(tokenizer.decode(response, skip_special_tokens=True))
    return response[-1] == tokenizer.eos_token_id and grade(text, question.answer).correct


def _by_length(problems: Sequence[Question], counts: Sequence[int]) -> dict[str, float]:
    by_length: dict[str, list[int]] = {}
    for question, count in zip(problems, counts, strict=True):
        by_length.setdefault(str(question.size), []).append(count)
    return {length: sum(found) / (len(found) * SAMPLES) for length, found in by_length.items()}


@torch.inference_mode()
def sample(model: Any, tokenizer: Qwen2Tokenizer, prompts: Sequence[list[int]], limit: int) -> list[list[int]]:
    """Sample one response a prompt, at temperature 1, cut at the limit."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    responses: dict[int, list[int]] = {}
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        width = max(len(prompts[i]) for i in indices)
        padding = [width - len(prompts[i]) for i in indices]
        tokens = torch.tensor(
            [[tokenizer.pad_token_id] * pad + prompts[i] for pad, i in zip(padding, indices, strict=True)]
        )
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        output = model.generate(input_ids=tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=limit)
        for i, row in zip(indices, output[:, width:].tolist(), strict=True):
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            responses[i] = row[:end]
    return [responses[i] for i in range(len(prompts))]
