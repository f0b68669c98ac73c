"""Samples per second of a tiny model with one process and with two, for evaluation and for training.

    python -m benchmarks.processes --json processes.json

The embedded model on the embedded problems, as in the quickstart. `1 process` holds engine and learner, with one thread
and with torch's own number of them; `2 processes` are two env runner actors that sample, and two learner actors that
train when these are done, each with a thread. All are built at first and then work in turn; a ratio is the median over
rounds of the seconds of one process with one thread over a variant's own, in the same round.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from algorithms.utils.process import prepare
from benchmarks.record import benchmark_parser, empty_table, show

BASELINE = "1 process, 1 thread"


@dataclass
class Variant:
    """An algorithm over some processes, and what its runs took.

    Args:
        threads: of torch in this process while it works.
        seconds: by kind of work, round by round.
    """

    name: str
    processes: int
    threads: int
    algorithm: Any = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"evaluation": [], "training": []})

    def build(self, arguments: argparse.Namespace) -> None:
        """Start its processes, and run each once."""
        from algorithms.grpo.config import GRPOConfig

        remote = self.processes if self.processes > 1 else 0
        config = (
            GRPOConfig()
            .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
            .rl_module(model="embedded:tiny", dtype="float32")
            .env_runners(
                engine=arguments.engine,
                dtype="float32",
                max_response_tokens=48,
                num_env_runners=remote,
                num_cpus_per_env_runner=0.5,
            )
            .learners(num_learners=remote, num_cpus_per_learner=0.5, num_gpus_per_learner=0, num_threads=1)
            .training(lr=1e-5, group_size=8, queries_per_step=arguments.samples // 8)
            .evaluation(data="embedded:heldout", samples=4, k=[1], limit=arguments.samples // 4)
            .debugging(seed=1)
        )
        if not remote:
            config = config.learners(num_threads=self.threads).env_runners(num_threads=self.threads)
        self.algorithm = config.build_algo()
        for work in self.seconds:
            self.run(work)
        self.seconds = {work: [] for work in self.seconds}

    def run(self, work: str) -> None:
        """Evaluate, or take a training step."""
        import torch

        torch.set_num_threads(self.threads)
        call: Callable[[], Any] = self.algorithm.evaluate if work == "evaluation" else self.algorithm.train
        started = time.perf_counter()
        call()
        self.seconds[work].append(time.perf_counter() - started)


def main() -> None:
    """Measure, print a table, and write the figures where a file is named."""
    parser = benchmark_parser(
        __doc__,
        rounds=9,
        samples=(256, "samples of an evaluation, and of a training step"),
    )
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    arguments = parser.parse_args()
    prepare()  # before torch is imported: the commands' threads wait without spinning
    import ray
    import torch

    own = torch.get_num_threads()
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    variants = [Variant(BASELINE, 1, 1), Variant("2 processes, 1 thread each", 2, 1)]
    if own > 1:
        variants.insert(1, Variant(f"1 process, {own} threads", 1, own))
    try:
        for variant in variants:
            variant.build(arguments)
        for number in range(arguments.rounds):
            for variant in variants if number % 2 else reversed(variants):
                for work in variant.seconds:
                    variant.run(work)
    finally:
        for variant in variants:
            if variant.algorithm is not None:
                variant.algorithm.stop()
        ray.shutdown()
    report(variants, arguments)


def report(variants: list[Variant], arguments: argparse.Namespace) -> None:
    """Show samples per second of the first variant, and the others' ratios to it."""
    table = empty_table("Tiny models, one process and two", "work", *(variant.name for variant in variants))
    figures = []
    for work in ("evaluation", "training"):
        base = variants[0].seconds[work]
        cells = [f"{arguments.samples / statistics.median(base):.0f} samples/s"]
        for variant in variants:
            own = variant.seconds[work]
            ratios = [one / mine for one, mine in zip(base, own, strict=True)]
            ratio = statistics.median(ratios)
            cells.append(f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
            figure = {"work": work, "variant": variant.name, "ratio": ratio, "seconds": own}
            figures.append(figure | {"samples": arguments.samples})
        del cells[1]  # the first variant's ratio to itself
        table.add_row(work, *cells)
    show([table], arguments, figures)


if __name__ == "__main__":
    main()
