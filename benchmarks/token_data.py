"""What storing every token costs a step: `python -m benchmarks.token_data`."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.table import Table

from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.types import Context, Rollout
from algorithms.train.rollout_files import TokenPieces, rollout_rows, write_rollouts
from benchmarks.record import benchmark_parser, show

GROUPS, SIZE, PROMPT = 16, 8, 20
LENGTHS = (32, 2048)
REPETITIONS = 7


def main() -> None:
    """Print CPU time and file size of a step's rollouts, with and without token data, at two response lengths.

    Tokens, log-probs and entropies are random: real ones compress better.
    """
    arguments = benchmark_parser(__doc__).parse_args()
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    table = Table("", "without", "with")
    figures: list[dict[str, float]] = []
    for length in LENGTHS:
        groups = _groups(length, tokenizer.decode)
        cells = []
        for pieces in (None, TokenPieces(tokenizer)):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "step.parquet"
                seconds = []
                for _ in range(REPETITIONS):
                    started = time.process_time()
                    write_rollouts(file, rollout_rows(1, groups, tokenizer, pieces))
                    seconds.append(time.process_time() - started)
                milliseconds, size = 1000 * statistics.median(seconds), file.stat().st_size
            figures.append({"tokens": length, "data": pieces is not None, "milliseconds": milliseconds, "bytes": size})
            cells.append(f"{milliseconds:.1f} ms, {size / 1000:,.0f} kB")
        table.add_row(f"{length:,} tokens an answer", *cells)
    show([table], arguments, figures)


def _groups(length: int, decode: Callable[[list[int]], str]) -> list[Group]:
    rng = np.random.default_rng(0)
    return [
        Group(Prompt(str(index)), [_sample(index, length, decode, rng) for _ in range(SIZE)]) for index in range(GROUPS)
    ]


def _sample(group: int, length: int, decode: Callable[[list[int]], str], rng: np.random.Generator) -> Sample:
    tokens = rng.integers(5, 100, PROMPT + length).astype(np.int32)
    mask = np.arange(len(tokens)) >= PROMPT
    logprobs = -rng.exponential(0.3, length).astype(np.float32)
    messages = (
        {"role": "user", "content": "6-5+7-1-6"},
        {"role": "assistant", "content": decode(tokens[PROMPT:].tolist())},
    )
    rollout = Rollout(
        0, str(group), group, Context.PLAIN, tokens, mask, logprobs, 1.0, True, False, "equal", 1, messages=messages
    )
    return Sample(rollout, 1.0, old_logprobs=logprobs, entropies=-logprobs)


if __name__ == "__main__":
    main()
