"""What ROVER and RepExp do to pass@8, and Delethink to lengths: five seeds of the quickstart's task, beside GRPO.

python -m benchmarks.ablation --arms grpo,rover,rep_exp,delethink --seeds 5 --out runs/effects
python -m benchmarks.effects runs/effects   # add its finished runs to the records, and print the table
python -m benchmarks.effects                # print the table of docs/evidence/effects.jsonl
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from algorithms.utils.statistics import in_points
from benchmarks import laptop
from benchmarks.ablation.intervals import t_interval
from benchmarks.looks import TITLES

RECORDS = laptop.RECORDS.with_name("effects.jsonl")
REFERENCE = "grpo"


def table(runs: Sequence[laptop.Run]) -> str:
    """Tabulate each arm's means over seeds at the end, and its paired differences to GRPO with 95 % intervals."""
    heads = ("arm", "pass@1", "minus GRPO [95 %]", "pass@8", "minus GRPO [95 %]", "tokens", "distinct")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in dict.fromkeys(run.arm for run in runs)}
    for arm, own in by_arm.items():
        cells = [TITLES[arm]]
        for name in ("pass@1", "pass@8"):
            ours, theirs = (np.array([run.after["metrics"][name] for run in side]) for side in (own, by_arm[REFERENCE]))
            gap = t_interval((ours - theirs).tolist())
            ends = f"{in_points(gap.mean):+.1f} [{in_points(gap.low):+.1f}, {in_points(gap.high):+.1f}]"
            cells += [f"{in_points(ours.mean()):.1f} %", "" if arm == REFERENCE else ends]
        lengths, texts = (np.mean([run.after["metrics"][name] for run in own]) for name in ("mean_tokens", "distinct"))
        lines.append(f"| {' | '.join([*cells, f'{lengths:.1f}', f'{in_points(texts):.1f} %'])} |")
    return "\n".join(lines)


def main() -> None:
    """Add runs, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of an ablation, whose finished runs are added")
    if folder := parser.parse_args().folder:
        laptop.add(folder, RECORDS)
    print(table(laptop.read_records(RECORDS)))


if __name__ == "__main__":
    main()
