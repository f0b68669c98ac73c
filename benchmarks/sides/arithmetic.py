"""The least time of a step on this machine: its matrix products alone."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.sides.steps import Baton, Step
from benchmarks.sides.task import Task

# Rows of a decoding step are rounded up to a multiple of this, so that few sizes have to be timed.
ROUNDED_TO = 16


@dataclass(frozen=True)
class Shapes:
    """The matrix products of a model: (outputs, inputs) of each linear layer, and of the head."""

    layers: tuple[tuple[int, int], ...]
    head: tuple[int, int]

    @classmethod
    def of(cls, lm: Any) -> "Shapes":
        """Read them off a Hugging Face causal LM."""
        linear = [m for m in lm.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
        head = lm.get_output_embeddings().weight.shape
        return cls(tuple((m.out_features, m.in_features) for m in linear), (head[0], head[1]))


class Arithmetic:
    """Times the products of a step; equal sizes are timed once.

    Args:
        shapes: of the model.
        token_budget: tokens of a micro-batch of the update.
    """

    def __init__(self, shapes: Shapes, token_budget: int) -> None:
        self.shapes, self.token_budget = shapes, token_budget
        self.product = functools.cache(_product_s)

    def decoding_s(self, lengths: Sequence[int]) -> float:
        """Time the products of decoding responses of these lengths in one batch that ended ones leave."""
        seconds = 0.0
        for step in range(max(lengths)):
            rows = -(-sum(length > step for length in lengths) // ROUNDED_TO) * ROUNDED_TO
            seconds += sum(self.product(rows, *shape, False) for shape in (*self.shapes.layers, self.shapes.head))
        return seconds

    def update_s(self, tokens: int, response_tokens: int) -> float:
        """Time the products of a forward and a backward pass: layers on all tokens, the head on responses."""
        rows = min(tokens, self.token_budget)
        layers = sum(self.product(rows, *shape, True) for shape in self.shapes.layers)
        own = min(response_tokens, 384)  # that many the head takes at a time
        return layers * tokens / rows + self.product(own, *self.shapes.head, True) * response_tokens / own


def _product_s(rows: int, outputs: int, inputs: int, trains: bool) -> float:
    """Time y = x Wᵀ, and with `trains` the products for the gradients of x and W; the least of several.

    It is the processor time of one thread, so that neighbors on the machine do not count.
    """
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    gradient = torch.randn(rows, outputs) if trains else x
    times: list[float] = []
    until = time.perf_counter() + 0.05
    while len(times) < 3 or time.perf_counter() < until:
        started = time.process_time()
        functional.linear(x, weight)
        if trains:
            gradient @ weight
            gradient.T @ x
        times.append(time.process_time() - started)
    return min(times)


def run(task: Task, baton: Baton) -> None:
    """Time one step's arithmetic for each command; `steps` gives the lengths of the responses."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32)
    shapes = Shapes.of(model)
    del model
    baton.give_back(None)
    while True:
        baton.wait()
        arithmetic = Arithmetic(shapes, task.token_budget)
        with torch.inference_mode():
            decoding = arithmetic.decoding_s(task.lengths)
            responses = sum(task.lengths)
            # Each prompt once: no way of computing needs less.
            update = arithmetic.update_s(responses + task.prompt_tokens, responses)
        baton.give_back(Step(decoding + update, decoding, 0.0, len(task.lengths), responses, 0.0))
