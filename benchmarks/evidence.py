"""Whether R³ helps a real language model: arms beside GRPO in two regimes, from the records of their runs.

    python -m benchmarks.evidence                                  # print every table of docs/evidence/third-*.jsonl
    python -m benchmarks.evidence truncated runs/truncated         # first add the finished runs of this folder
    python -m benchmarks.evidence truncated runs/truncated --run 2 # first of all train what is missing, two at a time

docs/evidence/third.yaml is the protocol: regimes, arms, budget, predictions; with it `--run` trains. Arms are paired by
seed and held-out problem.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from benchmarks import laptop
from benchmarks.ablation.command import main as train
from benchmarks.ablation.intervals import Interval
from benchmarks.laptop import Run, by_arm, mean, percent, with_ends
from benchmarks.looks import TITLES

REGIMES = ("incorrect", "truncated")
REFERENCES = {"grpo": "GRPO", "r3": "R³"}
PROTOCOL = laptop.RECORDS.with_name("third.yaml")
# Metrics by mechanism of R³, each counted in groups.
MECHANISMS = {
    "ranked": "ranking/groups",
    "in an order of its own": "ranking/ordered",
    "second turns": "reflection/prompts",
    "added to by replay": "replay/added",
}


def records(regime: str) -> Path:
    """Return the file of a regime's records."""
    return laptop.RECORDS.with_name(f"third-{regime}.jsonl")


def read(regime: str) -> list[Run]:
    """Return the recorded runs of a regime."""
    return laptop.read_records(records(regime))


def ablation(protocol: Mapping[str, Any], regime: str, out: Path, group: str = "primary") -> list[str]:
    """Return the arguments of `python -m benchmarks.ablation` by which a group of the protocol's arms is trained."""
    own = protocol["regimes"][regime]
    options = {
        "config": protocol["config"],
        "arms": ",".join(protocol["arms"][group]),
        "seeds": protocol["seeds"][group],
        "tokens": own["tokens"],
        "out": out,
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [*flags, *protocol["settings"], *own["settings"]]


def crossed_interval(values: np.ndarray) -> Interval:
    """Return the mean with its 95 % interval over seeds and problems, both drawn at random.

    The variance of the mean is that of a two-way layout with random effects and one value a cell; degrees of freedom by
    Satterthwaite (Searle, Casella and McCulloch, Variance Components, 1992). Where the sum of mean squares is not
    above one of its parts, that part alone counts.

    Args:
        values: [seeds, problems], at least two of each.
    """
    seeds, problems = values.shape
    mean, rows, columns = values.mean(), values.mean(axis=1), values.mean(axis=0)
    rest = values - rows[:, None] - columns + mean
    freedom = np.array([seeds - 1, problems - 1, (seeds - 1) * (problems - 1)])
    squares = np.array([problems * rows.var() * seeds, seeds * columns.var() * problems, (rest**2).sum()]) / freedom
    combined, parts = squares @ [1, 1, -1], squares * [1, 1, 0]
    if combined <= parts.max():
        combined, used = parts.max(), freedom[parts.argmax()]
    else:
        used = combined**2 / (squares**2 / freedom).sum()
    half = stats.t.ppf(0.975, used) * np.sqrt(combined / values.size)
    return Interval(float(mean), float(mean - half), float(mean + half), seeds)


def ahead(runs: Sequence[Run], arm: str, reference: str) -> Interval | None:
    """Return an arm's final held-out pass@1 minus the reference's over common seeds; None with fewer than two."""
    own, other = ({run.seed: run for run in runs if run.arm == name} for name in (arm, reference))
    seeds = sorted(own.keys() & other.keys())
    if len(seeds) < 2:
        return None
    uids = sorted(own[seeds[0]].after["correct"])
    shares = (
        np.array([[run[seed].after["correct"][uid] for uid in uids] for seed in seeds], float) for run in (own, other)
    )
    return crossed_interval(np.subtract(*shares))


def compared(runs: Sequence[Run]) -> str:
    """Tabulate each arm's pass@1 at the end and over the run, its differences to GRPO and to R³, and its cost."""
    gaps = [f"minus {name} [95 %]" for name in REFERENCES.values()]
    heads = ("arm", "seeds", "before", "after", "over the run", *gaps, "tokens", "CPU s a 1,000 tokens")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, own in by_arm(runs).items():
        cells = [
            TITLES.get(arm, arm),
            str(len(own)),
            percent(mean(own, "before", "pass@1")),
            percent(mean(own, "after", "pass@1")),
            percent(float(np.mean([area(run) for run in own]))),
            *(_difference(runs, arm, reference) for reference in REFERENCES),
            f"{np.mean([run.generated_tokens for run in own]):,.0f}",
            f"{np.mean([1000 * run.cpu_s / run.generated_tokens for run in own]):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def acting(runs: Sequence[Run]) -> str:
    """Tabulate in which share of an arm's groups each mechanism acts."""
    lines = [f"| arm | {' | '.join(MECHANISMS)} |", "|---" * (1 + len(MECHANISMS)) + "|"]
    for arm, of_arm in by_arm(runs).items():
        own = [run.counts for run in of_arm if run.counts]
        groups = sum(counts["groups/count"] for counts in own)
        if any(counts[name] for counts in own for name in MECHANISMS.values()):
            shares = [f"{sum(counts[name] for counts in own) / groups:.0%}" for name in MECHANISMS.values()]
            lines.append(f"| {TITLES.get(arm, arm)} | {' | '.join(shares).replace('%', ' %')} |")
    return "\n".join(lines)


def area(run: Run) -> float:
    """Return the mean held-out pass@1 over generated tokens."""
    tokens, values = np.transpose(run.curve)
    return float(np.trapezoid(values, tokens) / (tokens[-1] - tokens[0]))


def _difference(runs: Sequence[Run], arm: str, reference: str) -> str:
    gap = ahead(runs, arm, reference) if arm != reference else None
    return with_ends(gap) if gap else ""


def main() -> int:
    """Train where asked, add runs, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regime", nargs="?", choices=REGIMES, help="default: all")
    parser.add_argument("folder", type=Path, nargs="?", help="of the runs; those that are finished are added")
    parser.add_argument("--run", type=int, metavar="N", help="train what is missing, N runs at a time")
    parser.add_argument("--group", choices=("primary", "secondary"), default="primary", help="arms to train")
    given = parser.parse_args()
    if given.run and not given.folder:
        parser.error("--run needs a regime and a folder")
    if given.run:
        protocol = yaml.safe_load(PROTOCOL.read_text("utf-8"))
        code = train([*ablation(protocol, given.regime, given.folder, given.group), "--parallel", str(given.run)])
        if code:
            return code
    for regime in [given.regime] if given.regime else REGIMES:
        if given.folder:
            laptop.add(given.folder, records(regime))
        if runs := read(regime):
            print(f"{regime}\n\n{compared(runs)}\n\n{laptop.by_seed(runs)}\n\n{acting(runs)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
