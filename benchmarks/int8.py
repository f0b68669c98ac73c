"""Rollouts in int8 beside the engine's own dtype: tokens a second, and how far log-probs are from the learner's.

    python -m benchmarks.int8 --json int8.json
    python -m benchmarks.int8 --dtype bfloat16

Two vLLM engines of one model in one process answer the same prompts in turn; the ratio is the median over the pairs.
The learner's log-probs are in float32. Differences are over all sampled tokens, in nats.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.config.placement import INT8
from algorithms.learner.forward import ForwardSettings, score
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import Completion, GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from benchmarks.gpu_steps.agreement import Agreement, compare, rows_of
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
    sampling = Sampling(1.0, 1.0, arguments.tokens)
    requests = [GenerationRequest(prompts[i % len(prompts)], i, sampling) for i in range(arguments.responses)]
    rates: tuple[list[float], list[float]] = ([], [])
    answers: list[list[Completion]] = [[], []]
    for pair in range(-1, arguments.pairs):  # the first pair warms up
        for side in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            answers[side] = engines[side].generate(requests)
            if pair >= 0:
                tokens = sum(len(completion.tokens) for completion in answers[side])
                rates[side].append(tokens / (time.perf_counter() - started))
    _report(arguments, rates, [_agreement(model, requests, completions) for completions in answers])
    sys.stdout.flush()
    os._exit(0)  # engines in one process do not always end


def _prompt(tokenizer: Any, topic: str) -> np.ndarray:
    asked = [{"role": "user", "content": f"Write a short text about {topic}."}]
    return np.array(tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False), np.int32)


def _agreement(model: str, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> Agreement:
    learner, rows = load_causal_lm(model, "float32").eval(), rows_of(requests, completions)
    scored = score(learner, rows, ForwardSettings(), entropy=False)
    return compare(rows, [logprobs for logprobs, _ in scored])


def _report(arguments: Any, rates: Sequence[list[float]], agreements: Sequence[Agreement]) -> None:
    columns = ("engine", "tokens/s", "mean |difference|", "largest")
    table = empty_table("vLLM's rollouts of SmolLM2-135M-Instruct", *columns)
    for name, side, found in zip((arguments.dtype, f"int8, else {arguments.dtype}"), rates, agreements, strict=True):
        table.add_row(name, f"{statistics.median(side):,.0f}", f"{found.mean:.2g}", f"{found.largest:.2g}")
    ratios = [b / a for a, b in zip(*rates, strict=True)]
    table.caption = f"int8 is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
    show([table], arguments, {"ratios": ratios, "agreements": [found.figures for found in agreements]})


if __name__ == "__main__":
    main()
