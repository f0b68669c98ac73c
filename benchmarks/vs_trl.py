"""Whole training steps of this project and of TRL's GRPOTrainer, in turn, and what either learns in the same time.

    python -m benchmarks.vs_trl --json vs_trl.json

Both sides sample, reward and update with the embedded tiny model in float32 on the CPU, each in a process of its own
with the same number of torch threads, and only one of them works at any time. Per step: 32 prompts, 8 responses to
each, one optimizer step on all 256. Common to both: temperature 1, AdamW (1.2e-4 after 10 steps of warm-up, no weight
decay), gradient norm clipped at 1, ratio clipped to 0.8..1.28, mean over all response tokens of the step, advantages
scaled by each group's standard deviation, no reference model, no importance weights, nothing logged or saved.
Prompts are compared token by token, and both rewards come from the same environment.

Settings of TRL that are not its defaults, all in its favor: no gradient checkpointing, no logging, no progress bar,
and the micro-batch that is fastest here (--micro-batch; of 32, 64, 128 and 256 responses). It samples with
transformers' `generate`: its static cache took a quarter more processor time a step here, continuous batching seven
times as much, and colocated vLLM did not finish a step on the CPU within two minutes.
This project runs without env runner and learner actors, with its embedded engine, as in the quickstart.

real: the arithmetic task; a response ends when the model ends it, at 48 tokens at the latest. fixed: the end-of-turn
token does not exist, every response has 48 tokens; the reward is the share of digits, so that every group has a
gradient. A ratio is TRL's median seconds a step over this project's, without the first steps of either; its spread is
the 10th and 90th percentile over pairs of successive steps. After its pairs the real task goes on, the side that has
used less time first, until both have trained for --seconds: what they have learned by then is the mean reward over the
last fifth of that time.
"""

import argparse
import datetime
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from algorithms.models.names import resolve_model
from benchmarks.sides import ours, trl
from benchmarks.sides.process import Side, Step
from benchmarks.sides.task import FIXED_ID, Task, endless_model

NAMES = ("ours", "trl")


@dataclass
class Comparison:
    """The steps of both sides on one task.

    Args:
        warm_up: first steps of each side that are no part of the ratio.
        pairs: further steps that were taken in turn.
        steps: by side.
    """

    warm_up: int
    pairs: int
    steps: dict[str, list[Step]] = field(default_factory=lambda: {name: [] for name in NAMES})

    def paired(self, name: str) -> list[Step]:
        """The steps that count."""
        return self.steps[name][self.warm_up : self.warm_up + self.pairs]

    def elapsed(self, name: str) -> float:
        """Seconds that a side has trained for."""
        return sum(step.seconds for step in self.steps[name])

    @property
    def ratio(self) -> float:
        """Samples a second of this project over TRL's."""
        ours_s, trl_s = (float(np.median([step.seconds for step in self.paired(name)])) for name in NAMES)
        return trl_s / ours_s

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and 90th percentile of that ratio over pairs."""
        pairs = zip(*(self.paired(name) for name in NAMES), strict=True)
        low, high = np.percentile([trl_step.seconds / own.seconds for own, trl_step in pairs], [10, 90])
        return float(low), float(high)

    def learned(self, name: str, seconds: float, share: float = 0.2) -> float:
        """Mean reward of the steps that ended within the last `share` of `seconds`, or of the one before; 0: none."""
        ends = np.cumsum([step.seconds for step in self.steps[name]])
        rewards = np.array([step.reward for step in self.steps[name]])
        last = int((ends <= seconds).sum())
        first = min(int((ends <= (1 - share) * seconds).sum()), last - 1)
        return float(rewards[first:last].mean()) if last else 0.0

    def learnt_by_step(self, name: str, count: int = 5) -> float:
        """Mean reward of the last `count` steps that both sides have taken."""
        common = min(len(steps) for steps in self.steps.values())
        return float(np.mean([step.reward for step in self.steps[name][max(0, common - count) : common]]))


def compare(task: Task, *, warm_up: int, pairs: int, seconds: float = 0.0) -> Comparison:
    """Let both sides train in turn, then until either has trained for `seconds`."""
    result = Comparison(warm_up, pairs)
    with ExitStack() as stack:
        sides = {}
        for name, run in zip(NAMES, (ours.run, trl.run), strict=True):
            print(f"  starting {name}", file=sys.stderr)
            sides[name] = Side(name, run, task)
            stack.callback(sides[name].close)

        def step(name: str) -> None:
            result.steps[name].append(sides[name].step())
            print(f"  {name}: step {len(result.steps[name])}, {result.steps[name][-1].seconds:.2f} s", file=sys.stderr)

        for turn in range(warm_up + pairs):
            for name in NAMES if turn % 2 else reversed(NAMES):
                step(name)
        while (behind := min(NAMES, key=result.elapsed)) and result.elapsed(behind) < seconds:
            step(behind)
    return result


def report(real: Comparison, fixed: Comparison, seconds: float) -> dict[str, Any]:
    """What goes into the JSON file, apart from the settings."""
    steps = {name: {side: [asdict(s) for s in c.steps[side]] for side in NAMES} for name, c in _named(real, fixed)}
    common = min(seconds, *map(real.elapsed, NAMES))
    return {
        "ratio_real": real.ratio,
        "ratio_fixed": fixed.ratio,
        "spread_real": real.spread,
        "spread_fixed": fixed.spread,
        "reward_at_equal_time": {name: real.learned(name, common) for name in NAMES},
        "equal_time_s": common,
        "reward_at_equal_steps": {name: real.learnt_by_step(name) for name in NAMES},
        "reward_against_seconds": {
            name: [[float(end), step.reward] for end, step in zip(_ends(real, name), real.steps[name], strict=True)]
            for name in NAMES
        },
        "warm_up": real.warm_up,
        "pairs": real.pairs,
        "steps": steps,
    }


def _named(real: Comparison, fixed: Comparison) -> Sequence[tuple[str, Comparison]]:
    return (("real", real), ("fixed", fixed))


def _ends(comparison: Comparison, name: str) -> np.ndarray:
    return np.cumsum([step.seconds for step in comparison.steps[name]])


def tables(real: Comparison, fixed: Comparison, seconds: float) -> list[Table]:
    """For people."""
    speed = Table(title="Seconds a step: median (sampling; the rest)", title_justify="left")
    for name in ("lengths", "this project", "TRL", "ratio", "10th..90th percentile", "tokens a response"):
        speed.add_column(name, justify="left" if name == "lengths" else "right")
    for name, comparison in _named(real, fixed):
        low, high = comparison.spread
        lengths = (
            sum(s.tokens for s in comparison.paired(n)) / sum(s.samples for s in comparison.paired(n)) for n in NAMES
        )
        cells = (_seconds(comparison.paired(side)) for side in NAMES)
        speed.add_row(
            name, *cells, f"{comparison.ratio:.2f}", f"{low:.2f}..{high:.2f}", " / ".join(f"{x:.1f}" for x in lengths)
        )
    common = min(seconds, *map(real.elapsed, NAMES))
    learning = Table(title="Mean reward of training responses, real task", title_justify="left")
    for name in ("after seconds of training", "this project", "TRL"):
        learning.add_column(name, justify="right")
    for part in (0.2, 0.4, 0.6, 0.8, 1.0):
        # Each row averages over the fifth of the whole time that ends there.
        cells = (f"{real.learned(name, part * common, share=0.2 / part):.3f}" for name in NAMES)
        learning.add_row(f"{part * common:.0f}", *cells)
    return [speed, learning]


def _seconds(steps: Sequence[Step]) -> str:
    whole, sampling = (
        float(np.median(values)) for values in zip(*((s.seconds, s.generate_s) for s in steps), strict=True)
    )
    return f"{whole:.2f} ({sampling:.2f}; {whole - sampling:.2f})"


def main() -> None:
    """Measure, write the file, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help="file for every number")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of steps on each task")
    parser.add_argument("--seconds", type=float, default=75.0, help="of training on the real task, either side")
    parser.add_argument("--warm-up", type=int, default=2, help="first steps that are no part of the ratio")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of either side")
    parser.add_argument("--queries", type=int, default=32, help="prompts a step, 8 responses to each")
    parser.add_argument("--micro-batch", type=int, default=32, help="responses in a micro-batch of TRL")
    parser.add_argument("--token-budget", type=int, default=2048, help="tokens in a micro-batch of this project")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.queries * 8 % arguments.micro_batch:
        parser.error("--micro-batch must divide the responses of a step")
    logging.getLogger().setLevel(logging.ERROR)
    common = {name: getattr(arguments, name) for name in ("threads", "queries", "micro_batch", "token_budget", "seed")}
    turns = {"warm_up": arguments.warm_up, "pairs": arguments.pairs}
    with tempfile.TemporaryDirectory() as folder:
        print("real lengths", file=sys.stderr)
        real_task = Task("r3env/Math-v0", resolve_model("embedded:tiny"), 48, **common)
        real = compare(real_task, **turns, seconds=arguments.seconds)
        print("fixed lengths", file=sys.stderr)
        fixed = compare(Task(FIXED_ID, endless_model(Path(folder) / "endless"), 48, **common), **turns)
    result = {
        **report(real, fixed, arguments.seconds),
        "settings": asdict(real_task) | {"environment": "r3env/Math-v0 and fixed lengths", "model": "embedded:tiny"},
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "ray")},
        "machine": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    for table in tables(real, fixed, arguments.seconds):
        Console().print(table)


if __name__ == "__main__":
    main()
