"""Rollouts in int8 beside the engine's own dtype: tokens a second, and how far log-probs are from the learner's.

    python -m benchmarks.int8 --json int8.json
    python -m benchmarks.int8 --dtype bfloat16

Two vLLM engines of one model in one process answer the same prompts in turn; the ratio is the median over the pairs.
The learner's log-probs are those of transformers in float32. Mean differences are over all sampled tokens, in nats.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from algorithms.config.placement import INT8
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import Completion, GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from benchmarks.real_model import real_model
from benchmarks.record import benchmark_parser, empty_table, show

TOPICS = "bees ships rivers clocks tea wood glass trains moss chess salt bread wool maps bells ink".split()


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(
        __doc__, responses=64, tokens=64, pairs=(5, "how often both engines generate"), dtype="float32"
    )
    arguments = parser.parse_args()
    folder = real_model()
    if folder is None:
        sys.exit("error: the real model is missing; fix: make real-model")
    model = str(folder)
    tokenizer = load_tokenizer(model)
    prompts = [_prompt(tokenizer, topic) for topic in TOPICS]
    engines = [
        make_engine(
            "vllm",
            model=model,
            dtype=arguments.dtype,
            max_num_seqs=arguments.responses,
            eos_token_ids=stop_token_ids(tokenizer, model),
            max_model_len=512,
            options=options,
        )
        for options in ({}, {"quantization": INT8})
    ]
    seconds: tuple[list[float], list[float]] = ([], [])
    answers: list[list[Completion]] = [[], []]
    requests: list[GenerationRequest] = []
    for pair in range(-1, arguments.pairs):  # the first pair warms up
        sampling = Sampling(1.0, 1.0, arguments.tokens)
        requests = [GenerationRequest(prompts[i % len(prompts)], i, sampling) for i in range(arguments.responses)]
        for side in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            answers[side] = engines[side].generate(requests)
            if pair >= 0:
                seconds[side].append(time.perf_counter() - started)
    gaps = [_gaps(model, requests, completions) for completions in answers]
    _report(arguments, answers, seconds, gaps)
    del engines
    os._exit(0)  # engines in one process do not always end


def _prompt(tokenizer: Any, topic: str) -> np.ndarray:
    asked = [{"role": "user", "content": f"Write a short text about {topic}."}]
    return np.array(tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False), np.int32)


@torch.no_grad()
def _gaps(model: str, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> np.ndarray:
    """Return log-prob(engine) - log-prob(learner) of all sampled tokens."""
    learner, found = load_causal_lm(model, "float32").eval(), []
    for request, completion in zip(requests, completions, strict=True):
        tokens = torch.from_numpy(np.concatenate([request.tokens, completion.tokens]).astype(np.int64))[None]
        scores = learner(tokens).logits[0, len(request.tokens) - 1 : -1].log_softmax(-1)
        chosen = scores.gather(1, tokens[0, len(request.tokens) :, None])[:, 0]
        found.append(completion.logprobs - chosen.numpy())
    return np.concatenate(found)


def _report(
    arguments: Any, answers: Sequence[Sequence[Completion]], seconds: Sequence[list[float]], gaps: Sequence[np.ndarray]
) -> None:
    columns = ("engine", "tokens/s", "mean |difference|", "largest", "mean (KL)")
    table = empty_table("vLLM's rollouts of SmolLM2-135M-Instruct", *columns)
    rates = [
        [sum(len(c.tokens) for c in side) / s for s in times] for side, times in zip(answers, seconds, strict=True)
    ]
    for name, side, gap in zip((arguments.dtype, f"int8, else {arguments.dtype}"), rates, gaps, strict=True):
        cells = (
            f"{statistics.median(side):,.0f}",
            *(f"{x:.2g}" for x in (abs(gap).mean(), abs(gap).max(), gap.mean())),
        )
        table.add_row(name, *cells)
    ratios = [b / a for a, b in zip(*rates, strict=True)]
    table.caption = f"int8 is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
    show([table], arguments, {"ratio": statistics.median(ratios), "mean_gap": float(abs(gaps[1]).mean())})


if __name__ == "__main__":
    main()
