"""What R³ costs beside GRPO: steps of both in turn, seconds of each generated token, and where the difference goes.

    python -m benchmarks.overhead                                        # the quickstart, 3 minutes
    python -m benchmarks.overhead --config configs/quickstart.yaml --set training.minibatches=1

Both sides train with the same configuration, model and seed, each in a process of its own, and only one of them works
at any time. The history is a file, as in a run; nothing is evaluated or saved beside it. Every step counts from
--warm-up on, by which the history is filled.

R³ generates more per step (reflection prompts) and trains on more of it: GRPO skips the backward pass of a group whose
rewards are equal; replay and ranking give such a group a gradient. So seconds are divided by generated
tokens, and the table says how many tokens either side has trained on. `at equal work` is the ratio that
is left when an update's seconds are counted by trained tokens at GRPO's price, and generation at GRPO's price a token:
what R³'s own machinery costs. Processor time is that of the side's process, all threads: other work on the
machine distorts the wall time.
"""

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.record import benchmark_parser, empty_table, show
from benchmarks.sides.steps import Baton, Side, Step

NAMES = ("r3_grpo", "grpo")
WALL, CPU = "wall", "cpu"
CLOCKS = {WALL: "wall", CPU: "processor"}

WORK = {
    "tokens": "generated tokens",
    "rows": "responses",
    "reflection_rows": "responses to reflection prompts",
    "trained_rows": "responses trained on",
    "trained_tokens": "tokens trained on",
    "trained_contexts": "the same, with their prompts",
}

# A stage below it, as a share of GRPO's step on both sides, is counted in the rest.
SMALL = 0.01


@dataclass(frozen=True)
class Run:
    """What a side trains.

    Args:
        algorithm: `grpo` or `r3_grpo`.
        files: of the configuration.
        overrides: `section.key=value`.
        threads: of torch.
    """

    algorithm: str
    files: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    threads: int = 1


@dataclass
class Sides:
    """The counted steps of both sides.

    Args:
        steps: by side, in the order in which they were taken.
    """

    steps: dict[str, list[Step]] = field(default_factory=lambda: {name: [] for name in NAMES})

    def total(self, name: str, figure: str) -> float:
        """Sum a figure over all steps of a side: a field of `Step` or one of its details."""
        return sum(float(getattr(step, figure, 0.0) or step.details.get(figure, 0.0)) for step in self.steps[name])

    def per_token(self, name: str, figure: str) -> float:
        """Return seconds, or another figure, per generated token."""
        return self.total(name, figure) / max(1.0, self.total(name, "tokens"))

    def ratio(self, figure: str) -> float:
        """Return R³'s seconds per generated token over GRPO's."""
        return self.per_token(NAMES[0], figure) / self.per_token(NAMES[1], figure)

    def spread(self, figure: str) -> tuple[float, float]:
        """Return the 10th and 90th percentile of that ratio over pairs of steps."""
        pairs = zip(*(self.steps[name] for name in NAMES), strict=True)
        ratios = [getattr(a, figure) / a.tokens / (getattr(b, figure) / b.tokens) for a, b in pairs]
        low, high = np.percentile(ratios, [10, 90])
        return float(low), float(high)

    def stages(self, clock: str) -> list[str]:
        """List the timed stages, in the step's order."""
        found = dict.fromkeys(key for name in NAMES for step in self.steps[name] for key in step.details)
        return [key for key in found if key.startswith(f"{clock}/")]

    def at_equal_work(self, clock: str, figure: str) -> float:
        """Return R³'s seconds over GRPO's if generating and training a token cost what they cost GRPO."""
        update, rollouts = f"{clock}/update_policy", f"{clock}/collect_rollouts"
        price = self.total(NAMES[1], update) / max(1.0, self.total(NAMES[1], "trained_tokens"))
        more = self.per_token(NAMES[0], "trained_tokens") - self.per_token(NAMES[1], "trained_tokens")
        generating = self.per_token(NAMES[0], rollouts) - self.per_token(NAMES[1], rollouts)
        own = self.per_token(NAMES[0], figure) - price * more - generating
        return own / self.per_token(NAMES[1], figure)


def compare(runs: Sequence[Run], *, warm_up: int, pairs: int, target: Callable[[Run, Baton], None]) -> Sides:
    """Let both sides train in turn; every other pair begins with the other side."""
    result = Sides()
    with ExitStack() as stack:
        sides = {}
        for run in runs:
            print(f"  starting {run.algorithm}", file=sys.stderr)
            sides[run.algorithm] = Side(run.algorithm, target, run)
            stack.callback(sides[run.algorithm].close)
        for turn in range(warm_up + pairs):
            for name in NAMES if turn % 2 else reversed(NAMES):
                step = sides[name].step()
                print(f"  {name}: step {turn + 1}, {step.seconds:.2f} s, {step.tokens} tokens", file=sys.stderr)
                if turn >= warm_up:
                    result.steps[name].append(step)
    return result


def train(run: Run, baton: Baton) -> None:
    """Train a side until stopped."""
    import ray

    from algorithms.config.loading import load
    from algorithms.grpo.config import GRPOConfig
    from algorithms.r3_grpo.config import R3GRPOConfig

    classes: dict[str, type[GRPOConfig]] = dict(zip(NAMES, (R3GRPOConfig, GRPOConfig), strict=True))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    overrides = ["run.name=overhead", "evaluation.interval=0", *run.overrides]
    config, settings = load(list(run.files), overrides, classes[run.algorithm])
    config.env_runners(num_threads=run.threads).learners(num_threads=run.threads)
    algorithm: Any = config.debugging(seed=settings.seed).build_checked()
    with tempfile.TemporaryDirectory() as folder:
        algorithm.keep_state_in(Path(folder))
        clocks = _clock_stages(algorithm)
        try:
            baton.give_back(None)
            while True:
                baton.wait()
                baton.give_back(_step(algorithm, clocks))
        finally:
            algorithm.stop()
            ray.shutdown()


def _clock_stages(algorithm: Any) -> dict[str, float]:
    """Time the stages' processor seconds into the dictionary that is returned."""
    seconds: dict[str, float] = {}
    run_stage = algorithm.run_stage

    def clocked(stage: Callable[..., Any], *arguments: Any) -> Any:
        started = time.process_time()
        result = run_stage(stage, *arguments)
        seconds[f"{CPU}/{stage.__name__}"] = time.process_time() - started
        return result

    algorithm.run_stage = clocked
    return seconds


def _step(algorithm: Any, clocks: dict[str, float]) -> Step:
    started, cpu_started = time.perf_counter(), time.process_time()
    algorithm.train()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    batch = algorithm.batch
    rollouts = [sample.rollout for sample in batch.fresh]
    rows = [sample for group in batch.groups for sample in group.samples]
    wall = {tag.replace("time/", f"{WALL}/"): value for tag, value in algorithm.stage_seconds.items()}
    return Step(
        seconds=seconds,
        generate_s=wall[f"{WALL}/collect_rollouts"],
        reward_s=0.0,
        samples=len(rollouts),
        tokens=sum(rollout.response_length for rollout in rollouts),
        reward=batch.record["reward/mean"],
        cpu_s=cpu,
        details={
            **wall,
            **clocks,
            "rows": float(len(rows)),
            "trained_rows": float(sum(bool(np.any(sample.advantages)) for sample in rows)),
            "trained_tokens": batch.record["policy/trained_tokens"],
            "trained_contexts": float(sum(len(s.rollout.tokens) for s in rows if np.any(s.advantages))),
            "reflection_rows": float(sum(r.context == "reflection" for r in rollouts)),
        },
    )


def tables(sides: Sides) -> list[Table]:
    """Make the printed tables: the ratio, what either side does, and the split by stage."""
    names = ("clock", "ratio", "10th..90th percentile of pairs", "at equal work")
    ratios = empty_table("R³'s seconds of a generated token over GRPO's", *names)
    for clock, figure in ((WALL, "seconds"), (CPU, "cpu_s")):
        low, high = sides.spread(figure)
        equal = sides.at_equal_work(clock, figure)
        ratios.add_row(f"{CLOCKS[clock]} time", f"{sides.ratio(figure):.3f}", f"{low:.2f}..{high:.2f}", f"{equal:.3f}")
    work = empty_table("Work of a step, mean", "", "R³", "GRPO")
    for figure, title in WORK.items():
        work.add_row(title, *(f"{sides.total(name, figure) / len(sides.steps[name]):,.0f}" for name in NAMES))
    return [ratios, work, *(_stage_table(sides, *clock) for clock in ((WALL, "seconds"), (CPU, "cpu_s")))]


def _stage_table(sides: Sides, clock: str, figure: str) -> Table:
    title = f"{CLOCKS[clock].capitalize()} milliseconds of 1,000 generated tokens"
    table = empty_table(title, "stage", "R³", "GRPO", "more", "share of GRPO's step")
    whole = sides.per_token(NAMES[1], figure)

    def add(title: str, mine: float, theirs: float) -> None:
        more = mine - theirs
        table.add_row(title, *(f"{1e6 * x:.1f}" for x in (mine, theirs, more)), f"{more / whole:+.1%}")

    stages = [s for s in sides.stages(clock) if max(sides.per_token(n, s) for n in NAMES) >= SMALL * whole]
    for stage in stages:
        add(stage.removeprefix(f"{clock}/"), *(sides.per_token(name, stage) for name in NAMES))
    sums = [sides.per_token(name, figure) for name in NAMES]
    add("the rest", *(s - sum(sides.per_token(n, x) for x in stages) for s, n in zip(sums, NAMES, strict=True)))
    add("step", *sums)
    return table


def main() -> None:
    """Measure, write the file, print the tables."""
    parser = benchmark_parser(
        __doc__,
        pairs=(40, "measured pairs of steps"),
        warm_up=(15, "first steps that are not measured"),
        threads=(1, "torch threads of either side"),
    )
    parser.add_argument("--config", nargs="+", default=["configs/quickstart.yaml"], help="files of the configuration")
    parser.add_argument("--set", nargs="*", default=[], metavar="section.key=value", help="settings of both sides")
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    runs = [Run(name, tuple(arguments.config), tuple(arguments.set), arguments.threads) for name in NAMES]
    sides = compare(runs, warm_up=arguments.warm_up, pairs=arguments.pairs, target=train)
    figures = {
        "ratio": {clock: sides.ratio(figure) for clock, figure in ((WALL, "seconds"), (CPU, "cpu_s"))},
        "runs": [asdict(run) for run in runs],
        "steps": {name: [asdict(step) for step in sides.steps[name]] for name in NAMES},
    }
    show(tables(sides), arguments, figures)


if __name__ == "__main__":
    main()
