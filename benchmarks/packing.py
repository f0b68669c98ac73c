"""One update's gradient on packed micro-batches against padded ones, for rows of several spreads of length.

    python -m benchmarks.packing                       # the embedded model on the CPU
    python -m benchmarks.packing --model 1.5b --device cuda --rows 32 --median-tokens 4000 --longest 32768 \
        --token-budget 32768 --checkpointing
    python -m benchmarks.packing --prompts             # groups, their prompt computed once against once a response
    python -m benchmarks.packing --masks               # packed rows in rectangles against transformers' packed masks

Both ways have the same weights and rows and take turns in one process; a ratio is the median over the turns, beside
its smallest and largest. `quickstart` has the lengths of the embedded model's answers, `long tail` those of reasoning
in small, `fixed` one length: what packing costs where it gains nothing. Seconds are processor time where the process
computes on one thread of a CPU, so other work does not count, and wall time elsewhere. Needs no Ray.

With `--prompts` both ways are packed: batches of groups of 8, `reflection` (prompt 4 × response), `plain` (prompt ½ ×
response) and `short`, with random Qwen3 weights where the model is `tiny`. Memory is the peak of the resident set above
weights and gradients, each way in a process of its own.

With `--masks` both ways compute the hidden states of one packed row and their gradient. Transformers finds the
sequences by their positions and masks all others.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2Config

from algorithms.learner.attention import use_packed_attention
from algorithms.learner.batch import TrainingSample, packed_batch
from algorithms.learner.flops import ModelShape, model_flops_utilization, peak_flops, update_cost
from algorithms.learner.forward import ForwardSettings
from algorithms.models.names import resolve_model
from benchmarks.random_models import QWEN2_1_5B
from benchmarks.record import benchmark_parser, empty_table, show
from benchmarks.shared_prompts import BATCHES, PromptCase, Turns, compare_prompts, prompt_table, turn_clock

PROMPT_TOKENS = (8, 16)


@dataclass(frozen=True)
class Comparison:
    """Packed against padded on the same rows.

    Args:
        rows: how many.
        tokens: of all rows, prompts included.
        padding_share: of the padded micro-batches' slots.
        packed_s: seconds of each turn.
        padded_s: seconds of each turn, pair by pair.
        scoring_ratio: padded over packed seconds of a scoring pass, the median.
        mfu: of the packed way's median turn; None where the device's peak is not known.
        packed_gib: peak GPU memory of the packed way; None on a CPU.
        padded_gib: of the padded way.
    """

    lengths: str
    rows: int
    tokens: int
    padding_share: float
    packed_s: list[float]
    padded_s: list[float]
    scoring_ratio: float
    mfu: float | None
    packed_gib: float | None
    padded_gib: float | None

    @property
    def ratios(self) -> list[float]:
        """How many times faster the packed way was, turn by turn."""
        return [padded / packed for packed, padded in zip(self.packed_s, self.padded_s, strict=True)]


def response_lengths(kind: str, arguments: argparse.Namespace) -> list[int]:
    """Draw the tokens of each response, a function of the seed."""
    rng = np.random.default_rng(arguments.seed)
    if kind == "fixed":
        return [arguments.median_tokens] * arguments.rows
    sigma = {"quickstart": 0.6, "long tail": 1.0}[kind]
    drawn = rng.lognormal(np.log(arguments.median_tokens), sigma, arguments.rows)
    return [int(length) for length in np.clip(drawn, 2, arguments.longest)]


def rows_of(lengths: Sequence[int], vocabulary: int, seed: int) -> list[TrainingSample]:
    """Make scored rows of random tokens, each with an advantage."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        prompt = int(rng.integers(*PROMPT_TOKENS))
        logprobs = rng.normal(-1.0, 0.3, length).astype(np.float32)
        tokens = rng.integers(0, vocabulary, prompt + length).astype(np.int32)
        advantage = float(rng.normal())
        rows.append(TrainingSample(tokens, np.arange(len(tokens)) >= prompt, advantage, 1e-3, logprobs, logprobs))
    return rows


def models(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Load the same model twice, packed and padded."""
    made = []
    for _ in range(2):
        if arguments.model == "tiny":
            lm: Any = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32)
        else:
            torch.manual_seed(0)
            with torch.device(arguments.device):
                lm = AutoModelForCausalLM.from_config(Qwen2Config(**QWEN2_1_5B), dtype=torch.float32)
        if arguments.checkpointing:
            lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        made.append(lm.to(arguments.device).train())
    if not use_packed_attention(made[0]):
        raise RuntimeError("the model does not take packed batches")
    return made[0], made[1]


def compare(kind: str, packed: Any, padded: Any, arguments: argparse.Namespace) -> Comparison:
    """Take turns, after one update of each to warm up."""
    rows = rows_of(response_lengths(kind, arguments), packed.config.vocab_size, arguments.seed)
    forward = ForwardSettings(token_budget=arguments.token_budget, dtype=arguments.dtype)
    clock = turn_clock(arguments.device, arguments.threads)
    turns = {"packed": Turns(), "padded": Turns()}
    for turn in range(arguments.repeats + 1):
        for name, lm in (("packed", packed), ("padded", padded)):
            turns[name].take(lm, rows, forward, clock, counts=turn > 0)
    ours, theirs = turns.values()
    shape = ModelShape.of(packed)
    flops = sum(update_cost(shape, row, reference=False) for row in rows)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else None
    return Comparison(
        lengths=kind,
        rows=len(rows),
        tokens=sum(len(row.tokens) for row in rows),
        padding_share=1 - theirs.statistics.passed_tokens / theirs.statistics.slots,
        packed_s=ours.update_s,
        padded_s=theirs.update_s,
        scoring_ratio=statistics.median(a / b for a, b in zip(theirs.scoring_s, ours.scoring_s, strict=True)),
        mfu=model_flops_utilization(flops, statistics.median(ours.update_s), 1, peak_flops(device, arguments.dtype)),
        packed_gib=ours.peak_gib,
        padded_gib=theirs.peak_gib,
    )


def table_of(comparisons: Sequence[Comparison]) -> Table:
    """Make the table, a line per spread of lengths."""
    columns = ("lengths", "rows", "tokens", "padding", "packed rows/s", "padded rows/s", "faster", "scoring", "MFU")
    table = empty_table("Gradient of one update, packed against padded", *columns)
    for one in comparisons:
        ratios = one.ratios
        table.add_row(
            one.lengths,
            str(one.rows),
            f"{one.tokens:,}",
            f"{one.padding_share:.0%}",
            *(f"{one.rows / statistics.median(s):,.0f}" for s in (one.packed_s, one.padded_s)),
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{one.scoring_ratio:.2f}x",
            "" if one.mfu is None else f"{one.mfu:.0%}",
        )
    return table


def compare_masks(kind: str, ours: Any, theirs: Any, arguments: argparse.Namespace) -> list[float]:
    """Return how many times faster rectangles were than masks, turn by turn."""
    rows = rows_of(response_lengths(kind, arguments), ours.config.vocab_size, arguments.seed)
    batch = packed_batch(rows, torch.device(arguments.device))
    clock = turn_clock(arguments.device, arguments.threads)
    ratios = []
    for turn in range(arguments.repeats + 1):
        seconds, states = [], []
        for lm, inputs in ((ours, batch.inputs), (theirs, {"position_ids": batch.inputs["position_ids"]})):
            began = clock()
            hidden = lm.get_decoder()(input_ids=batch.tokens, use_cache=False, **inputs).last_hidden_state
            hidden.square().mean().backward()
            seconds.append(clock() - began)
            states.append(hidden.detach())
        torch.testing.assert_close(*states, rtol=1e-3, atol=1e-3)
        if turn:
            ratios.append(seconds[1] / seconds[0])
    return ratios


def compare_batches(arguments: argparse.Namespace) -> None:
    """Measure groups with shared prompts, print a table, and write the figures."""
    same = {name: getattr(arguments, name) for name in ("group_size", "token_budget", "checkpointing")}
    same |= {name: getattr(arguments, name) for name in ("device", "dtype", "threads", "seed")}
    model = "small" if arguments.model == "tiny" else arguments.model
    cases = [PromptCase(batch=batch, model=model, **same) for batch in arguments.prompts or BATCHES]
    comparisons = [compare_prompts(case, arguments.repeats) for case in cases]
    figures = [asdict(one) | {"ratio": statistics.median(one.ratios)} for one in comparisons]
    show([prompt_table(comparisons)], arguments, figures)


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = benchmark_parser(
        __doc__,
        rows=128,
        median_tokens=(16, "median length of a response"),
        longest=(48, "longest response, in tokens"),
        token_budget=16384,
        checkpointing=(False, "recompute activations in backward"),
        repeats=9,
        threads=1,
        seed=0,
        group_size=(8, "group size with --prompts"),
    )
    parser.add_argument("--model", choices=("tiny", "1.5b"), default="tiny", help="embedded, or random Qwen2 weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    parser.add_argument("--lengths", nargs="+", default=["quickstart", "long tail", "fixed"])
    parser.add_argument("--prompts", nargs="*", choices=tuple(BATCHES), help="compare shared prompts; default: all")
    parser.add_argument("--masks", action="store_true", help="compare with transformers' packed masks")
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ("float32" if arguments.device == "cpu" else "bfloat16")
    torch.set_num_threads(arguments.threads)
    if arguments.prompts is not None:
        compare_batches(arguments)
        return
    packed, padded = models(arguments)
    if arguments.masks:
        for kind in arguments.lengths:
            ratios = compare_masks(kind, packed, padded, arguments)
            print(f"{kind}: {statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) as fast as masks")
        return
    comparisons = [compare(kind, packed, padded, arguments) for kind in arguments.lengths]
    figures = [asdict(one) | {"ratio": statistics.median(one.ratios)} for one in comparisons]
    show([table_of(comparisons)], arguments, figures)


if __name__ == "__main__":
    main()
