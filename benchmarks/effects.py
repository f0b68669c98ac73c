"""What ROVER and RepExp do to pass@8, and Delethink to lengths: five seeds of the quickstart's task, beside GRPO.

    python -m benchmarks.ablation --arms grpo,rover,rep_exp,delethink --seeds 5 --out runs/effects
    python -m benchmarks.effects runs/effects   # add its finished runs to the records, and print the table
    python -m benchmarks.effects                # print the table of docs/evidence/effects.jsonl

Arms are paired by seed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import laptop
from benchmarks.ablation.intervals import t_interval
from benchmarks.laptop import by_arm, mean, percent, with_ends
from benchmarks.looks import TITLES

RECORDS = laptop.RECORDS.with_name("effects.jsonl")
REFERENCE = "grpo"


def table(runs: Sequence[laptop.Run]) -> str:
    """Tabulate each arm's means over seeds at the end, and its paired differences to GRPO with 95 % intervals."""
    heads = ("arm", "pass@1", "minus GRPO [95 %]", "pass@8", "minus GRPO [95 %]", "tokens", "distinct")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    arms = {arm: {run.seed: run for run in own} for arm, own in by_arm(runs).items()}
    for arm, own in arms.items():
        cells = [TITLES[arm]]
        for name in ("pass@1", "pass@8"):
            cells += [percent(mean(own.values(), "after", name)), ""]
            if seeds := sorted(own.keys() & arms[REFERENCE].keys() if arm != REFERENCE else ()):
                ours, theirs = (
                    [side[seed].after["metrics"][name] for seed in seeds] for side in (own, arms[REFERENCE])
                )
                cells[-1] = with_ends(t_interval(np.subtract(ours, theirs).tolist()))
        length, texts = (mean(own.values(), "after", name) for name in ("mean_tokens", "distinct"))
        lines.append(f"| {' | '.join([*cells, f'{length:.1f}', percent(texts)])} |")
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
