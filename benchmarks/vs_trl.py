"""Compare training steps of this project and TRL's GRPOTrainer, in turn, and what either learns in the same time.

    python -m benchmarks.vs_trl --json vs_trl.json                          # real and fixed lengths
    python -m benchmarks.vs_trl --only wide --pairs 5 --warm-up 1           # 0.14 billion parameters, real vocabulary
    python -m benchmarks.vs_trl --only laptop --pairs 6 --threads 2         # SmolLM2-135M-Instruct, `make real-model`
    python -m benchmarks.vs_trl --only engines --pairs 6                    # ours with vLLM against transformers

Both sides sample, reward and update in float32 on the CPU, each in a process of its own with the same number of torch
threads, and only one of them works at any time. Per step: 32 prompts, 8 responses to each, one optimizer step on all
256. Common to both: temperature 1, AdamW (1.2e-4 after 10 steps of warm-up, no weight decay), gradient norm clipped at
1, ratio clipped to 0.8..1.28, mean over all response tokens of the step, advantages scaled by each group's standard
deviation, no reference model, no importance weights, nothing logged or saved. Prompts are compared token by token, and
both rewards come from the same environment.

Settings of TRL that are not its defaults, all in its favor: no gradient checkpointing, no logging, no progress bar,
and the micro-batch that is fastest here (--micro-batch; of 32, 64, 128 and 256 responses). It samples with
transformers' `generate`: its static cache took a quarter more processor time a step here, continuous batching seven
times as much, and colocated vLLM did not finish a step on the CPU within two minutes.
This project runs without env runner and learner actors, with its embedded engine, as in the quickstart.

real: the embedded model's arithmetic task; a response ends when the model ends it, at 48 tokens at the latest. Many of
its short answers are equal, and this project computes equal ones once in the update: `equal` is their share.
fixed: the end-of-turn token does not exist, every response has 48 tokens; the reward is the share of digits, so that
every group has a gradient. wide: fixed with 128 tokens, for a random Qwen3 of 0.14 billion parameters with the real
vocabulary of 151,936, and --wide-queries prompts a step. laptop: task and batch of configs/laptop.yaml, with a real
language model of 0.135 billion parameters, which ends its responses. engines: the real task, this project alone, its
vLLM engine against its embedded one.

A ratio is the other side's median seconds a step over this project's, without the first steps of either; its spread is
the 10th and 90th percentile over pairs of successive steps; `cpu` is the same ratio of processor seconds.
`arithmetic alone`, with --threads 1 alone, are the matrix products that the step cannot do without, timed in the same
run, in processor seconds: linear layers and head, for decoding the lengths that were sampled and for one forward and
backward pass over prompts (once) and responses. Attention, norms, sampling and the optimizer come on top. The largest
ratio that any program can reach here is the other side's processor seconds over them. They count equal responses as
often as they come, which this project does not compute again.
After its pairs the real task continues, the side that has used less time first, until both have trained for --seconds.
What they have learned by then is the mean reward over the last fifth of that time.
"""

import argparse
import datetime
import logging
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.table import Table

from algorithms.models.names import resolve_model
from benchmarks.record import benchmark_parser, empty_table, show
from benchmarks.sides import arithmetic
from benchmarks.sides.steps import Baton, Comparison, Side, Step
from benchmarks.sides.task import FIXED_ID, Task, endless_model, wide_model
from benchmarks.sides.trainers import run_ours, run_trl

TASKS = ("real", "fixed", "wide", "laptop", "engines")


def compare(
    task: Task,
    *,
    warm_up: int,
    pairs: int,
    seconds: float = 0.0,
    others: Mapping[str, tuple[Callable[[Task, Baton], None], Task]] | None = None,
    limit: bool = False,
) -> Comparison:
    """Let both sides train in turn, then until either has trained for `seconds`.

    Args:
        task: what both train on.
        warm_up: first steps that are no part of the ratio.
        pairs: steps that are.
        seconds: of training, either side.
        others: the sides by name, with their tasks, instead of this project and TRL.
        limit: whether to time the step's arithmetic alone.
    """
    kinds = others or {"ours": (run_ours, task), "trl": (run_trl, task)}
    result = Comparison(warm_up, pairs, {name: [] for name in kinds})
    names = result.names
    with ExitStack() as stack:
        sides = {}
        for name, (run, own) in kinds.items():
            print(f"  starting {name}", file=sys.stderr)
            sides[name] = Side(name, run, own)
            stack.callback(sides[name].close)

        def step(name: str) -> None:
            result.steps[name].append(sides[name].step())
            print(f"  {name}: step {len(result.steps[name])}, {result.steps[name][-1].seconds:.2f} s", file=sys.stderr)

        for turn in range(warm_up + pairs):
            for name in names if turn % 2 else reversed(names):
                step(name)
        while (behind := min(names, key=result.elapsed)) and result.elapsed(behind) < seconds:
            step(behind)
    if limit:
        result.arithmetic_s = time_arithmetic(task, result.paired(names[0])[-1])
    return result


def time_arithmetic(task: Task, step: Step) -> float:
    """Time the matrix products of such a step, the median of three; other work on the machine counts."""
    print("  timing the arithmetic alone", file=sys.stderr)
    sized = replace(task, lengths=step.lengths, prompt_tokens=step.prompt_tokens)
    side = Side("arithmetic", arithmetic.run, sized)
    try:
        return float(np.median([side.step().seconds for _ in range(3)]))
    finally:
        side.close()


def report(comparisons: Mapping[str, Comparison], seconds: float) -> dict[str, Any]:
    """Return the content of the JSON file, apart from the settings."""
    found: dict[str, Any] = {
        name: {
            "ratio": each.ratio,
            "spread": each.spread,
            "cpu_ratio": each.cpu_ratio,
            "arithmetic_s": each.arithmetic_s,
            "largest_ratio": each.largest_ratio,
            "equal_share": each.equal_share,
            "warm_up": each.warm_up,
            "pairs": each.pairs,
            "steps": {side: [asdict(s) for s in each.steps[side]] for side in each.names},
        }
        for name, each in comparisons.items()
    }
    if real := comparisons.get("real"):
        common = min(seconds, *map(real.elapsed, real.names))
        found["learning"] = {
            "reward_at_equal_time": {name: real.learned(name, common) for name in real.names},
            "equal_time_s": common,
            "reward_at_equal_steps": {name: real.learnt_by_step(name) for name in real.names},
            "reward_against_seconds": {
                name: [[float(end), step.reward] for end, step in zip(_ends(real, name), real.steps[name], strict=True)]
                for name in real.names
            },
        }
    return found


def _ends(comparison: Comparison, name: str) -> np.ndarray:
    return np.cumsum([step.seconds for step in comparison.steps[name]])


def tables(comparisons: Mapping[str, Comparison], seconds: float) -> list[Table]:
    """Make the printed tables."""
    columns = ("task", "this project", "the other", "ratio", "10..90 %", "cpu", "tokens", "equal", "arithmetic alone")
    speed = empty_table("Seconds per step: median (sampling; the rest)", *columns)
    for name, comparison in comparisons.items():
        low, high = comparison.spread
        paired = [comparison.paired(side) for side in comparison.names]
        lengths = (sum(s.tokens for s in steps) / sum(s.samples for s in steps) for steps in paired)
        alone, largest = comparison.arithmetic_s, comparison.largest_ratio
        speed.add_row(
            f"{name}, {' / '.join(comparison.names)}",
            *map(_seconds, paired),
            f"{comparison.ratio:.2f}",
            f"{low:.2f}..{high:.2f}",
            f"{comparison.cpu_ratio:.2f}",
            " / ".join(f"{x:.1f}" for x in lengths),
            f"{comparison.equal_share:.0%}",
            f"{alone:.2f} s, at most {largest:.2f}" if alone else "–",
        )
    return [speed, *([_learning(comparisons["real"], seconds)] if seconds and "real" in comparisons else [])]


def _learning(real: Comparison, seconds: float) -> Table:
    common = min(seconds, *map(real.elapsed, real.names))
    title = "Mean reward of training responses, real task"
    learning = empty_table(title, "after seconds of training", "this project", "TRL", left=0)
    for part in (0.2, 0.4, 0.6, 0.8, 1.0):
        # Each row averages over the fifth of the whole time that ends there.
        cells = (f"{real.learned(name, part * common, share=0.2 / part):.3f}" for name in real.names)
        learning.add_row(f"{part * common:.0f}", *cells)
    return learning


def _seconds(steps: Sequence[Step]) -> str:
    whole, sampling = (
        float(np.median(values)) for values in zip(*((s.seconds, s.generate_s) for s in steps), strict=True)
    )
    return f"{whole:.2f} ({sampling:.2f}; {whole - sampling:.2f})"


def compare_one(name: str, arguments: argparse.Namespace, folder: Path) -> Comparison:
    """Run the comparison of one task."""
    print(name, file=sys.stderr)
    common = {key: getattr(arguments, key) for key in ("threads", "queries", "micro_batch", "token_budget", "seed")}
    turns: dict[str, Any] = {"warm_up": arguments.warm_up, "pairs": arguments.pairs}
    # Of several threads the products' processor time is not known, and wall time is no divisor of processor time.
    limit = arguments.threads == 1
    real = Task("r3env/Math-v0", resolve_model("embedded:tiny"), 48, **common)
    if name == "real":
        return compare(real, **turns, seconds=arguments.seconds, limit=limit)
    if name == "fixed":
        return compare(Task(FIXED_ID, endless_model(folder / "endless"), 48, **common), **turns, limit=limit)
    if name == "wide":
        own = common | {"queries": arguments.wide_queries, "micro_batch": arguments.wide_micro_batch}
        return compare(Task(FIXED_ID, wide_model(folder / "wide"), 128, **own), **turns, limit=limit)
    if name == "laptop":
        return compare(laptop_task(common), **turns, limit=limit)
    engines = {engine: (run_ours, replace(real, engine=engine)) for engine in ("vllm", "transformers")}
    return compare(real, **turns, others=engines)


def laptop_task(common: dict[str, int]) -> Task:
    """Return the task of configs/laptop.yaml, with its batch."""
    settings = yaml.safe_load(Path("configs/laptop.yaml").read_text(encoding="utf-8"))
    environment, training = settings["environment"], settings["training"]
    return Task(
        environment["id"],
        settings["rl_module"]["model"],
        settings["env_runners"]["max_response_tokens"],
        lr=training["lr"],
        warmup_steps=training["warmup_steps"],
        group_size=training["group_size"],
        options={"data": environment["data"], **environment["options"]},
        **common | {"queries": training["queries_per_step"], "micro_batch": training["group_size"]},
    )


def main() -> None:
    """Measure, write the file, print the tables."""
    parser = benchmark_parser(
        __doc__,
        pairs=(12, "pairs of steps on each task"),
        seconds=(75.0, "seconds of training on the real task, either side"),
        warm_up=(2, "first steps that are not in the ratio"),
        threads=(1, "torch threads of either side"),
        queries=(32, "prompts per step, 8 responses to each"),
        micro_batch=(32, "responses in a micro-batch of TRL"),
        token_budget=(2048, "tokens in a micro-batch of this project"),
        wide_queries=(4, "prompts per step of the wide task"),
        wide_micro_batch=(8, "responses in a micro-batch of TRL there"),
        seed=0,
    )
    parser.add_argument("--only", nargs="+", choices=TASKS, default=TASKS[:2], help="tasks; default: real fixed")
    arguments = parser.parse_args()
    if arguments.queries * 8 % arguments.micro_batch or arguments.wide_queries * 8 % arguments.wide_micro_batch:
        parser.error("--micro-batch must divide the responses of a step")
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        comparisons = {name: compare_one(name, arguments, Path(folder)) for name in arguments.only}
    result = {
        **report(comparisons, arguments.seconds),
        "settings": {key: value for key, value in vars(arguments).items() if key not in ("json", "record")},
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "ray")},
        "machine": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    show(tables(comparisons, arguments.seconds), arguments, result, width=160)


if __name__ == "__main__":
    main()
