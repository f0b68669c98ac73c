"""R³ beside its controls, from docs/evidence/controls.json: `python -m benchmarks.evidence.controls`."""

from collections.abc import Callable

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.ablation.intervals import Interval, t_interval
from benchmarks.evidence.records import Run, runs
from benchmarks.suite.statistics import holm

FILE, REFERENCE = "controls", "r3"
ARMS = {
    "r3": "R³ (our variant), by entropy",
    "r3-flat": "… its ranks all tied: a flat penalty on truncation",
    "r3-random-rank": "… its ranks drawn at random",
    "flat-penalty": "GRPO and the flat penalty alone",
    "serr": "GRPO and ranking alone",
    "ccr": "GRPO and replay alone",
    "isr": "GRPO and reflection alone",
    "grpo": "GRPO",
    "ngrpo": "NGRPO",
    "rl_zvp": "RL-ZVP",
    "dapo": "DAPO",
}
BUDGET = 150_000  # generated tokens of the table


def at_tokens(run: Run, tokens: float = BUDGET) -> float:
    """Interpolate held-out pass@1 where so many tokens had been generated."""
    evaluations = run["evaluations"]
    return float(np.interp(tokens, evaluations["generated_tokens"], evaluations["pass@1"]))


def at_cpu(run: Run, seconds: float) -> float:
    """Interpolate held-out pass@1 after so many CPU seconds of training steps."""
    evaluations = run["evaluations"]
    return float(np.interp(seconds, evaluations["cpu_s"], evaluations["pass@1"]))


def at_equal_cpu(ours: Run, other: Run) -> float:
    """Return our pass@1 minus the other's when the faster of the two runs ends."""
    seconds = min(run["evaluations"]["cpu_s"][-1] for run in (ours, other))
    return at_cpu(ours, seconds) - at_cpu(other, seconds)


def at_equal_tokens(ours: Run, other: Run) -> float:
    """Return our pass@1 minus the other's at the budget of generated tokens."""
    return at_tokens(ours) - at_tokens(other)


# What the columns of differences are measured at.
AXES = (at_equal_tokens, at_equal_cpu)


def differences(arm: str, difference: Callable[[Run, Run], float]) -> np.ndarray:
    """Return R³ minus the arm, seed by seed: [seeds]."""
    ours, others = runs(FILE, REFERENCE), runs(FILE, arm)
    return np.array([difference(ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())])


def table() -> str:
    """Return the comparison as Markdown: every arm, and R³ minus it at equal tokens and at equal CPU seconds."""
    others = [arm for arm in ARMS if arm != REFERENCE]
    pairs = {arm: [differences(arm, axis) for axis in AXES] for arm in others}
    adjusted = [holm([float(ttest_1samp(pairs[arm][axis], 0).pvalue) for arm in others]) for axis in range(len(AXES))]
    lines = [
        "| arm | | pass@1 at 150k tokens | R³ minus it, equal tokens | p | R³ minus it, equal CPU seconds | p |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, meaning in ARMS.items():
        cells = [f"`{arm}`", meaning, interval(t_interval([at_tokens(run) for run in runs(FILE, arm).values()]))]
        for axis in range(len(AXES)):
            p = adjusted[axis][others.index(arm)] if arm in pairs else None
            cells += ["", ""] if p is None else [interval(t_interval(pairs[arm][axis]), sign="+"), f"{p:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(found: Interval, sign: str = "") -> str:
    """Write a mean and its 95 % interval."""
    return f"{found.mean:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def main() -> None:
    """Print the table, and how often there was anything to rank."""
    seeds = sorted(runs(FILE, REFERENCE))
    print(f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}; 95 % intervals by Student's t, p adjusted by Holm\n")
    print(table())
    totals = [run["totals"] for run in runs(FILE, REFERENCE).values()]
    ranked, ordered = (int(sum(one[f"ranking/{name}"] for one in totals)) for name in ("groups", "ordered"))
    print(f"\n{REFERENCE}: {ordered} of {ranked} ranked groups had an order, the others tied")


if __name__ == "__main__":
    main()
