"""Whether R³ helps a real language model: arms beside GRPO in two regimes, from the records of their runs.

    python -m benchmarks.evidence                           # print every table of docs/evidence/third-*.jsonl
    python -m benchmarks.evidence truncated runs/truncated  # first add the finished runs of this folder

docs/evidence/third.yaml is the protocol: regimes, arms, budget, predictions. The runs are of its commits, whose `--run`
trains them.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import laptop
from benchmarks.differences import ahead, area, doubts, one_processor, pairs
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
    """Return the recorded runs of a regime, of arms with two seeds or more: one alone has no interval."""
    runs = laptop.read_records(records(regime))
    seeds = Counter(run.arm for run in runs)
    return [run for run in runs if seeds[run.arm] > 1]


def _protocol() -> dict[str, Any]:
    return yaml.safe_load(PROTOCOL.read_text("utf-8"))


def compared(runs: Sequence[Run]) -> str:
    """Tabulate each arm's pass@1 before, after and over the run, and its differences to GRPO and to R³.

    A run that is evaluated before and after it alone has no mean over it.
    """
    gaps = [f"minus {name} [95 %]" for name in REFERENCES.values()]
    heads = ("arm", "seeds", "before", "after", *gaps, "over the run", "truncated", "tokens")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, own in by_arm(runs).items():
        cells = [
            TITLES.get(arm, arm),
            str(len(own)),
            percent(mean(own, "before", "pass@1")),
            percent(mean(own, "after", "pass@1")),
            *(_difference(runs, arm, reference) for reference in REFERENCES),
            percent(float(np.mean([area(run) for run in own]))) if all(len(run.curve) > 2 for run in own) else "",
            percent(mean(own, "after", "truncated")),
            f"{np.mean([run.generated_tokens for run in own]):,.0f}",
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


def costs(runs: Sequence[Run], reference: str = "grpo") -> str:
    """Tabulate processor seconds of a token as a multiple of the reference's, by seed, where machines are alike."""
    found = {arm: [pair for pair in pairs(runs, arm, reference) if _one_machine(*pair)] for arm in by_arm(runs)}
    arms = {arm: paired for arm, paired in found.items() if paired and arm != reference}
    if not arms:
        return f"no arm has a seed with {reference} on the same machine"
    seeds = sorted({own.seed for paired in arms.values() for own, _ in paired})
    lines = [f"| arm | {' | '.join(f'seed {seed}' for seed in seeds)} |", "|---" * (1 + len(seeds)) + "|"]
    for arm, paired in arms.items():
        ratios = {own.seed: f"{_cpu_s(own) / _cpu_s(other):.2f}" for own, other in paired}
        lines.append(f"| {TITLES.get(arm, arm)} | {' | '.join(ratios.get(seed, '') for seed in seeds)} |")
    return "\n".join(lines)


def _one_machine(own: Run, other: Run) -> bool:
    return own.machine == other.machine and one_processor(own, other)


def _cpu_s(run: Run) -> float:
    return run.cpu_s / run.generated_tokens


def developed() -> str:
    """Tabulate what was tried on development problems before the registration: pass@1 before and after."""
    names = ("limit", "queries", "lr", "seed")
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for tried in _protocol()["development"]:
        cells = rows.setdefault(tuple(tried[name] for name in names), {})
        cells[tried["arm"]] = f"{percent(tried['before'])} → {percent(tried['after'])}"
    arms = [arm for arm in TITLES if any(arm in cells for cells in rows.values())]
    heads = ("tokens an answer", "queries", "learning rate", "seed", *(TITLES[arm] for arm in arms))
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for key, cells in rows.items():
        lines.append(f"| {' | '.join([*map(str, key), *(cells.get(arm, '') for arm in arms)])} |")
    return "\n".join(lines)


def _difference(runs: Sequence[Run], arm: str, reference: str) -> str:
    gap = ahead(runs, arm, reference) if arm != reference else None
    return with_ends(gap) if gap else ""


def _other_code(regime: str, folder: Path) -> str:
    """Return what is wrong if a folder's runs are of another commit than the recorded ones."""
    found = {run.commit for run in laptop.read_runs(folder)}
    known = {run.commit for run in laptop.read_records(records(regime))}
    if not known or found <= known:
        return ""
    return (
        f"{folder}: runs of {', '.join(sorted(found - known))} cannot join those of {', '.join(sorted(known))} in "
        f"{records(regime).name}; fix: train in a checkout of that commit"
    )


def main() -> int:
    """Add runs, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regime", nargs="?", choices=REGIMES, help="default: all")
    parser.add_argument("folder", type=Path, nargs="?", help="of the runs; those that are finished are added")
    given = parser.parse_args()
    if given.folder and (fault := _other_code(given.regime, given.folder)):
        parser.error(fault)
    for regime in [given.regime] if given.regime else REGIMES:
        if given.folder:
            laptop.add(given.folder, records(regime))
        if runs := read(regime):
            shown = (compared, doubts, laptop.by_seed, laptop.by_kind, acting, costs)
            print("\n\n".join([regime, *(table(runs) for table in shown), ""]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
