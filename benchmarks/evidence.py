"""R³ beside its controls, and where answers are long searches, from docs/evidence: `python -m benchmarks.evidence`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.ablation.intervals import Interval, t_interval
from benchmarks.ablation.learned import Curve, Learnt
from benchmarks.suite import holm

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
REFERENCE = "r3"
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
SEARCHING = ("r3", "r3-flat", "serr", "grpo")
BUDGET = 150_000  # generated tokens of the table

Run = dict[str, Any]


def runs(name: str, arm: str) -> dict[int, Run]:
    """Return the runs of an arm by seed, from `docs/evidence/NAME.json`."""
    stored = json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
    return {run["seed"]: run for run in stored if run["arm"] == arm}


def learned(name: str, arms: Sequence[str]) -> dict[str, list[Learnt]]:
    """Return arm → its runs by seed, as an ablation reads them; a record has evaluations alone."""
    return {arm: [_learned(run) for _, run in sorted(runs(name, arm).items())] for arm in arms}


def _learned(run: Run) -> Learnt:
    columns = {name: np.array(values, float) for name, values in run["evaluations"].items()}
    steps, tokens = columns.pop("step"), columns.pop("generated_tokens")
    return Learnt(
        arm=run["arm"],
        seed=run["seed"],
        folder=Path(run.get("folder", "")),
        settings_hash=run.get("settings_hash", ""),
        wall_s=run["wall_s"],
        held_out=Curve(steps, tokens, columns),
        training=Curve.of([]),
    )


def accuracy(run: Run, axis: str, at: float) -> float:
    """Interpolate held-out pass@1 where a column of the evaluations reaches `at`."""
    return float(np.interp(at, run["evaluations"][axis], run["evaluations"]["pass@1"]))


def at_equal_cpu(ours: Run, other: Run) -> float:
    """Return our pass@1 minus the other's when the faster of the two runs ends."""
    seconds = min(run["evaluations"]["cpu_s"][-1] for run in (ours, other))
    return accuracy(ours, "cpu_s", seconds) - accuracy(other, "cpu_s", seconds)


def at_equal_tokens(ours: Run, other: Run) -> float:
    """Return our pass@1 minus the other's at the budget of generated tokens."""
    return accuracy(ours, "generated_tokens", BUDGET) - accuracy(other, "generated_tokens", BUDGET)


# What the columns of differences are measured at.
AXES = (at_equal_tokens, at_equal_cpu)


def differences(arm: str, difference: Callable[[Run, Run], float]) -> np.ndarray:
    """Return R³ minus the arm, seed by seed: [seeds]."""
    ours, others = runs("controls", REFERENCE), runs("controls", arm)
    return np.array([difference(ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())])


def controls() -> str:
    """Return the comparison as Markdown: every arm, and R³ minus it at equal tokens and at equal CPU seconds."""
    others = [arm for arm in ARMS if arm != REFERENCE]
    pairs = {arm: [differences(arm, axis) for axis in AXES] for arm in others}
    adjusted = [holm([float(ttest_1samp(pairs[arm][axis], 0).pvalue) for arm in others]) for axis in range(len(AXES))]
    lines = [
        "| arm | | pass@1 at 150k tokens | R³ minus it, equal tokens | p | R³ minus it, equal CPU seconds | p |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, meaning in ARMS.items():
        levels = [accuracy(run, "generated_tokens", BUDGET) for run in runs("controls", arm).values()]
        cells = [f"`{arm}`", meaning, _interval(t_interval(levels))]
        for axis in range(len(AXES)):
            p = adjusted[axis][others.index(arm)] if arm in pairs else None
            cells += ["", ""] if p is None else [_interval(t_interval(pairs[arm][axis]), sign="+"), f"{p:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(found: Interval, sign: str = "") -> str:
    return f"{found.mean:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def searches() -> str:
    """Return what each arm's runs ranked in long searches, and what became of their answers; means over seeds."""
    heads = ("arm", "seeds", "ranked groups", "with an order", "pass@1 before", "after", "truncated before", "after")
    lines = [f"| {' | '.join([*heads, 'tokens after'])} |", "|---" * (len(heads) + 1) + "|"]
    for arm in SEARCHING:
        own = list(runs("search", arm).values())
        groups, ordered = (
            sum(run["totals"].get(f"ranking/{name}", 0.0) for run in own) for name in ("groups", "ordered")
        )
        cells = [f"`{arm}`", str(len(own)), f"{groups:.0f}", f"{ordered / groups:.0%}" if groups else ""]
        cells += [f"{_mean(own, column, at):.1%}" for column in ("pass@1", "truncated") for at in (0, -1)]
        cells.append(f"{_mean(own, 'mean_tokens', -1):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(own: Sequence[Run], column: str, at: int) -> float:
    return float(np.mean([run["evaluations"][column][at] for run in own]))


if __name__ == "__main__":
    print(f"{controls()}\n\n{searches()}")
