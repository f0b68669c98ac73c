"""Recompute claims of the evidence log from docs/evidence/*.json: `python -m benchmarks.evidence.recheck`."""

import numpy as np

from benchmarks.ablation.intervals import Interval, paired_difference
from benchmarks.evidence.records import Run, runs

# What seconds are spread over within a run, whose file has only how many there were in all.
CLOCKS = {"tokens": "generated_tokens", "steps": "step"}


def differing(first: Run, second: Run) -> list[str]:
    """Return what differs between two runs, by name: each column of their evaluations, steps, generated tokens."""
    sides = [run["evaluations"] | {"in all": (run["steps"], run["generated_tokens"])} for run in (first, second)]
    return [name for name in {**sides[0], **sides[1]} if sides[0].get(name) != sides[1].get(name)]


def accuracy(run: Run, seconds: float, clock: str) -> float:
    """Interpolate held-out pass@1 after `seconds` of the run's `wall_s`.

    Args:
        run: a run of the file.
        seconds: since its start, startup and evaluations included.
        clock: of `CLOCKS`: the run's seconds are taken to be proportional to these.
    """
    axis = np.array(run["evaluations"][CLOCKS[clock]], float)
    return float(np.interp(seconds, axis / axis[-1] * run["wall_s"], run["evaluations"]["pass@1"]))


def at_equal_seconds(name: str, arm: str, reference: str, clock: str) -> Interval | None:
    """Compare two arms seed by seed, where the faster run of each pair has ended.

    Args:
        name: of the file.
        arm: whose pass@1 the reference's is taken from.
        reference: the other arm.
        clock: see `accuracy`.

    Returns:
        The mean difference and its 95 % interval; None without a common seed.
    """
    ours, others = runs(name, arm), runs(name, reference)
    ends = {seed: min(ours[seed]["wall_s"], others[seed]["wall_s"]) for seed in ours.keys() & others.keys()}
    values, references = ({seed: accuracy(side[seed], ends[seed], clock) for seed in ends} for side in (ours, others))
    return paired_difference(values, references)


def report() -> str:
    """Return both checks as text."""
    default, top_1 = runs("choices", "r3")[0], runs("choices2", "top-1")[0]
    found = ", ".join(differing(default, top_1)) or "nothing"
    columns, points = ", ".join(default["evaluations"]), len(default["evaluations"]["step"])
    lines = [
        f"top-1 and r3, seed 0: of {columns} at {points} evaluations differ: {found}",
        "",
        "r3 minus an arm, held-out pass@1 at equal seconds, mean [95 % interval], seconds proportional to",
    ]
    for name, arm in [(name, arm) for name in ("sums", "sums-fresh") for arm in ("grpo", "grpo-slow", "dapo")]:
        differences = {clock: at_equal_seconds(name, "r3", arm, clock) for clock in CLOCKS}
        cells = [f"{clock} {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]" for clock, d in differences.items() if d]
        lines.append(f"{name:<10}  {arm:<9}  {'   '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    """Print both checks."""
    print(report())


if __name__ == "__main__":
    main()
