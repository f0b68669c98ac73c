"""What a real language model learns on a laptop: GRPO, R³ and two controls, from five seeds each.

    python -m benchmarks.ablation --config configs/laptop.yaml --arms grpo --seeds 5 --parallel 2 --out runs/laptop \
        --arm r3-laptop=r3:replay.dual_clip=3.0 \
        --arm permuted=grpo:training.mechanisms=[benchmarks.laptop_controls:Permuted] \
        --arm finishing=grpo:training.mechanisms=[benchmarks.laptop_controls:Finishing]
    python -m benchmarks.laptop runs/laptop   # add its finished runs to the records, and print the tables
    python -m benchmarks.laptop               # print the tables of docs/evidence/laptop.jsonl

A run's record is its arm, seed, commit, machine, cost, and for the evaluations before and after training the metrics,
each problem's share of correct answers, its kind, and ten answers.
"""

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import EngFormatter

from algorithms.train.run_directory import RunDirectory
from algorithms.utils.files import write_text
from algorithms.utils.provenance import machine
from algorithms.utils.statistics import in_points, paired_bootstrap
from benchmarks.ablation.intervals import Interval, half_width, paired_difference, t_interval
from benchmarks.ablation.learned import CPU, PASS_AT_1, held_out
from benchmarks.ablation.results import TOTALS
from benchmarks.looks import TITLES, Line, draw_lines

RECORDS = Path(__file__).parents[1] / "docs" / "evidence" / "laptop.jsonl"
SHOWN = ("grpo", "r3-laptop")  # arms whose answers are shown
SIDES = ("before", "after")
# Groups, and those of them in which a mechanism of R³ acts.
COUNTS = ("groups/count", *TOTALS)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        arm: a name of `TITLES`.
        seed: of the run.
        commit: of the code.
        machine: cores and processor.
        steps: of training.
        generated_tokens: in training.
        wall_s: seconds, evaluations included.
        curve: [generated tokens, held-out pass@1] of each evaluation.
        before: `metrics`, `correct` by problem, `levels` and `examples` as in evaluation.json.
        after: likewise.
        cpu_s: processor seconds of the training steps; 0: not recorded.
        counts: sums over the steps of the metrics in `COUNTS`; empty: not recorded.
    """

    arm: str
    seed: int
    commit: str
    machine: str
    steps: int
    generated_tokens: int
    wall_s: float
    curve: list[list[float]]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    cpu_s: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """The change of held-out pass@1."""
        return float(self.after["metrics"]["pass@1"] - self.before["metrics"]["pass@1"])


def read_records(file: Path = RECORDS) -> list[Run]:
    """Return the recorded runs, those of an arm together, by seed; none without a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return sorted((Run(**json.loads(line)) for line in lines), key=lambda run: (list(TITLES).index(run.arm), run.seed))


def read_run(folder: Path) -> Run | None:
    """Return the run in a folder `ARM-SEED` of an ablation; None while it is not finished."""
    run = RunDirectory.open(folder)
    if not run.summary_file.exists():
        return None
    summary, evaluation = json.loads(run.summary_file.read_text("utf-8")), run.read_evaluation()
    arm, _, seed = folder.name.rpartition("-")
    steps = run.read_metrics()
    curve = held_out(summary, steps)
    return Run(
        arm=arm,
        seed=int(seed),
        commit=summary["code"]["commit"] or "",
        machine=summary.get("machine", f"not recorded; added on {machine()}"),
        steps=summary["steps"],
        generated_tokens=summary["generated_tokens"],
        wall_s=summary["wall_s"],
        curve=np.transpose([curve.tokens, curve.values[PASS_AT_1]]).tolist(),
        cpu_s=sum(step.get(CPU, 0.0) for step in steps),
        counts={name: sum(step.get(name, 0.0) for step in steps) for name in COUNTS},
        **{
            side: {key: evaluation[side][key] for key in ("metrics", "correct", "levels", "examples")} for side in SIDES
        },
    )


def read_runs(folder: Path) -> list[Run]:
    """Return the finished runs of an ablation's folder; none without it."""
    return [run for path in sorted(folder.glob("*-[0-9]*")) if path.is_dir() and (run := read_run(path))]


def add(folder: Path, file: Path) -> None:
    """Add the finished runs of an ablation's folder to the records, in place of those of the same arm and seed."""
    found = read_runs(folder)
    new = {(run.arm, run.seed) for run in found}
    kept = [run for run in read_records(file) if (run.arm, run.seed) not in new]
    lines = [json.dumps(asdict(run), ensure_ascii=False, sort_keys=True) for run in (*kept, *found)]
    write_text(file, "".join(f"{line}\n" for line in lines))


def gains(runs: Sequence[Run]) -> str:
    """Tabulate each arm's held-out pass@1 before and after, and its gain by seed and on average."""
    lines = [
        "| arm | before | after, by seed | gain, by seed | mean gain [95 %] | median |",
        "|---|---|---|---|---|---|",
    ]
    for arm, own in by_arm(runs).items():
        cells = [
            TITLES[arm],
            percent(mean(own, "before", "pass@1")),
            ", ".join(percent(run.after["metrics"]["pass@1"]) for run in own),
            ", ".join(points(run.gain) for run in own),
            with_ends(t_interval([run.gain for run in own])),
            points(float(np.median([run.gain for run in own]))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(runs: Sequence[Run], arm: str = "r3-laptop", reference: str = "grpo") -> str:
    """Return by how much more an arm gains than another, with its interval over common seeds."""
    gap = paired_difference(*({run.seed: run.gain for run in runs if run.arm == name} for name in (arm, reference)))
    return f"{TITLES[arm]} minus {TITLES[reference]}: {f'{with_ends(gap)} points' if gap else 'no common seed'}"


def by_seed(runs: Sequence[Run]) -> str:
    """Tabulate every run: its gain with the interval over problems, lengths, truncation, distinct texts, and cost."""
    columns = ("arm", "seed", "gain [95 %]", "tokens", "truncated", "distinct", "generated", "minutes")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for run in runs:
        change = paired_bootstrap(run.before["correct"], run.after["correct"])
        interval = f" [{points(change.low)}, {points(change.high)}]" if change else ""
        cells = [
            TITLES[run.arm],
            str(run.seed),
            f"{points(run.gain)}{interval}",
            _sides(run, "mean_tokens", lambda value: f"{value:.0f}"),
            _sides(run, "truncated", percent),
            _sides(run, "distinct", percent),
            f"{run.generated_tokens / 1000:.0f}k",
            f"{run.wall_s / 60:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def by_kind(runs: Sequence[Run]) -> str:
    """Tabulate held-out pass@1 before training, and after it for each arm, by kind of constraint."""
    arms = by_arm(runs)
    lines = [f"| kind | before | {' | '.join(TITLES[arm] for arm in arms)} |", "|---" * (len(arms) + 2) + "|"]
    kinds = sorted({kind for run in runs for kind in run.before["levels"].values()})
    rows = [
        (kind, _of_kind(runs, "before", kind), [_of_kind(own, "after", kind) for own in arms.values()])
        for kind in kinds
    ]
    for kind, before, after in sorted(rows, key=lambda row: -row[2][0]):
        lines.append(f"| `{kind}` | {percent(before)} | {' | '.join(map(percent, after))} |")
    return "\n".join(lines)


def answers(runs: Sequence[Run], arms: Collection[str], count: int = 5) -> str:
    """Show answers to the same prompts before training and after it with each arm, of the first seed."""
    own = {arm: found[0] for arm, found in by_arm(runs).items() if arm in arms}
    before = next(iter(own.values())).before["examples"] if own else []
    lines = [f"| prompt | before | {' | '.join(TITLES[arm] for arm in own)} |", "|---|---|" + "---|" * len(own)]
    for place, first in enumerate(before[:count]):
        said = [first, *(run.after["examples"][place] for run in own.values())]
        cells = [first["problem"], *(f"{'✓' if one['correct'] else '✗'} {one['response']}" for one in said)]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def draw_curves(runs: Sequence[Run], path: Path, banded: Collection[str] | None = None) -> None:
    """Draw each arm's held-out pass@1 over generated tokens, as far as all of its seeds have got; replace the PNG.

    Args:
        runs: of all arms.
        path: of the picture.
        banded: arms with a band; None for all.
    """
    arms = by_arm(runs)
    ends = {arm: min(run.curve[-1][0] for run in own) for arm, own in arms.items()}
    where = np.linspace(0, max(ends.values()), 121)
    lines = {}
    for arm, own in arms.items():
        values = np.array([np.interp(where, *np.transpose(run.curve)) for run in own])
        values[:, where > ends[arm]] = np.nan
        half, mean = np.nan_to_num(half_width(values)), values.mean(0)
        half *= banded is None or arm in banded
        lines[arm] = Line(len(own), mean, np.array([mean - half, mean + half]).clip(0, 1))
    draw_lines(path, ("Held-out pass@1", "generated tokens"), where, lines, EngFormatter(sep=""))


def by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each arm."""
    return {arm: [run for run in runs if run.arm == arm] for arm in dict.fromkeys(run.arm for run in runs)}


def mean(runs: Iterable[Run], side: str, name: str) -> float:
    """Return the mean over runs of a metric before or after training."""
    return float(np.mean([getattr(run, side)["metrics"][name] for run in runs]))


def _of_kind(runs: Sequence[Run], side: str, kind: str) -> float:
    shares = [
        share
        for run in runs
        for uid, share in getattr(run, side)["correct"].items()
        if getattr(run, side)["levels"].get(uid) == kind
    ]
    return float(np.mean(shares))


def _sides(run: Run, name: str, written: Callable[[float], str]) -> str:
    return " → ".join(written(getattr(run, side)["metrics"][name]) for side in SIDES)


def percent(value: float) -> str:
    """Write a share."""
    return f"{in_points(value):.1f} %"


def points(value: float) -> str:
    """Write a difference of shares."""
    return f"{in_points(value):+.1f}"


def with_ends(gap: Interval) -> str:
    """Write a mean difference with its interval, which of two seeds that happen to agree has no width: then without."""
    return points(gap.mean) + (f" [{points(gap.low)}, {points(gap.high)}]" if gap.count > 2 else "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Add runs, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of an ablation, whose finished runs are added")
    parser.add_argument("--records", type=Path, default=RECORDS, help=f"file of the records; default: {RECORDS.name}")
    arguments = parser.parse_args()
    if arguments.folder:
        add(arguments.folder, arguments.records)
    runs = read_records(arguments.records)
    for table in (gains, difference, by_seed, by_kind):
        print(f"{table(runs)}\n")
    print(answers(runs, SHOWN))


if __name__ == "__main__":
    main()
