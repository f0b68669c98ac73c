"""Whether this project and TRL's GRPOTrainer learn the same: the task of `make laptop`, from several seeds.

    for seed in 0 1 2; do for side in ours trl; do
        python -m benchmarks.trl_learning $side --seed $seed   # 12 steps of 8 prompts x 8 answers; adds the run
    done; done
    python -m benchmarks.trl_learning                          # prints the table of docs/evidence/trl-laptop.jsonl

Settings and what is common to both sides are those of `python -m benchmarks.vs_trl --only laptop`. A seed orders the
queries and samples the answers otherwise on either side, so runs are not paired: the interval of a difference is
Welch's, over seeds. The reward is the mean over a step's answers, partial credit included.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from scipy import stats

from algorithms.utils.files import write_text
from algorithms.utils.provenance import code_commit, machine

RECORDS = Path(__file__).parents[1] / "docs" / "evidence" / "trl-laptop.jsonl"
SIDES = ("ours", "trl")
PARTS = 4


@dataclass(frozen=True)
class Run:
    """A run of one side.

    Args:
        side: a name of `SIDES`.
        seed: of its sampling and order.
        tokens: generated in each step.
        rewards: mean over each step's answers.
        threads: of torch.
        commit: of the code.
        machine: cores and processor.
        versions: of the libraries.
    """

    side: str
    seed: int
    tokens: list[int]
    rewards: list[float]
    threads: int
    commit: str
    machine: str
    versions: dict[str, str]


def read(file: Path = RECORDS) -> list[Run]:
    """Return the recorded runs; none without a file."""
    return [Run(**json.loads(line)) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def add(run: Run, file: Path) -> None:
    """Add a run, in place of one of the same side and seed."""
    kept = [known for known in read(file) if (known.side, known.seed) != (run.side, run.seed)]
    runs = sorted([*kept, run], key=lambda each: (each.side, each.seed))
    write_text(file, "".join(f"{json.dumps(asdict(each), sort_keys=True)}\n" for each in runs))


def train(side: str, seed: int, steps: int, threads: int) -> Run:
    """Train one side."""
    # Here, as the pages' tables need no trainer.
    from benchmarks.sides.steps import Side
    from benchmarks.sides.trainers import run_ours, run_trl
    from benchmarks.vs_trl import laptop_task

    task = laptop_task({"threads": threads, "token_budget": 512, "seed": seed, "queries": 0, "micro_batch": 0})
    trainer, done = Side(side, {"ours": run_ours, "trl": run_trl}[side], task), []
    try:
        for number in range(1, steps + 1):
            done.append(trainer.step())
            left = np.mean([step.seconds for step in done]) * (steps - number)
            print(
                f"{side} {seed}: step {number}/{steps}, reward {done[-1].reward:.3f}, {left:.0f} s left",
                file=sys.stderr,
            )
    finally:
        trainer.close()
    return Run(
        side=side,
        seed=seed,
        tokens=[step.tokens for step in done],
        rewards=[step.reward for step in done],
        threads=threads,
        commit=code_commit() or "",
        machine=machine(),
        versions={name: version(name) for name in ("torch", "transformers", "trl")},
    )


def by_part(run: Run, total: float) -> np.ndarray:
    """Return the mean reward of a token in each of `PARTS` equal parts of the first `total` generated tokens.

    Args:
        run: which has generated at least as many.
        total: tokens.
    """
    ends, sums = np.cumsum(run.tokens), np.cumsum(np.multiply(run.tokens, run.rewards))
    # The integral of the reward over tokens: a line between the ends of steps.
    area = np.interp(np.linspace(0, total, PARTS + 1), [0, *ends], [0, *sums])
    return np.diff(area) / (total / PARTS)


def table(runs: Sequence[Run]) -> str:
    """Tabulate the training reward of both sides over generated tokens, and its difference.

    Raises:
        ValueError: a side has fewer than two runs.
    """
    own, other = ([run for run in runs if run.side == side] for side in SIDES)
    if min(len(own), len(other)) < 2:
        raise ValueError("either side needs two runs for an interval")
    total = min(sum(run.tokens) for run in runs)
    mine, others = (np.array([by_part(run, total) for run in side]) for side in (own, other))
    names = [f"{total * part / PARTS:,.0f} to {total * (part + 1) / PARTS:,.0f}" for part in range(PARTS)]
    rows = [(name, mine[:, part], others[:, part]) for part, name in enumerate(names)]
    rows.append(("all", mine.mean(axis=1), others.mean(axis=1)))
    lines = ["| generated tokens | this project, by seed | TRL, by seed | difference [95 %] |", "|---|---|---|---|"]
    for name, ours, theirs in rows:
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        change = f"{ours.mean() - theirs.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        listed = (", ".join(f"{value:.3f}" for value in side) for side in (ours, theirs))
        lines.append(f"| {' | '.join((name, *listed, change))} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Train a side where one is named; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", nargs="?", choices=SIDES, help="the side to train; without one, print the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of records")
    given = parser.parse_args(argv)
    logging.getLogger().setLevel(logging.ERROR)
    if given.side:
        add(train(given.side, given.seed, given.steps, given.threads), given.records)
    else:
        print(table(read(given.records)))


if __name__ == "__main__":
    main()
