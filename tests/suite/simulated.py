"""Runs of the suite whose truth is known."""

import numpy as np

LEVELS = {"easy": 0.3, "medium": 0.05, "blind": 0.005}


def content(**changed):
    """A line of suite.jsonl, as data."""
    curve = [(0, 0, 0.0, 0.1), (5, 1000, 10.0, 0.3), (10, 3000, 20.0, 0.5)]
    line = {
        "phase": "test",
        "task": "sorting",
        "difficulty": "easy",
        "skill": "none",
        "base": 0,
        "arm": "r3",
        "seed": 1,
        "lr": 1e-4,
        "curve": [{"step": s, "tokens": t, "cpu_s": c, "pass@1": p} for s, t, c, p in curve],
        "final": {"pass@1": 0.5, "pass@8": 0.75, "entropy": 0.5, "truncated": 0.125},
        "wall_s": 60.0,
        "protocol": "0" * 64,
        "commit": "1" * 40,
    }
    return {**line, **changed}


def suite(gains, *, tasks=8, difficulties=("easy", "medium"), bases=3, noise=0.02, between=0.05, seed=0):
    """Lines of all runs: arm → what it gains at the end of a run, on top of what depends on the task.

    Args:
        noise: standard deviation of a run's gain.
        between: that of a base's gain, which all arms share.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for task, difficulty, base in ((t, d, b) for t in range(tasks) for d in difficulties for b in range(bases)):
        shared = 0.2 + 0.02 * task + rng.normal(0, between)
        for arm, gain in gains.items():
            start = LEVELS[difficulty]
            end = float(np.clip(start + shared + gain + rng.normal(0, noise), 0, 1))
            points = [(step, 1000 * step, 2.0 * step, start + (end - start) * step / 10) for step in (0, 5, 10)]
            lines.append(
                content(
                    task=f"task-{task}",
                    difficulty=difficulty,
                    base=base,
                    arm=arm,
                    seed=base,
                    curve=[{"step": s, "tokens": t, "cpu_s": c, "pass@1": p} for s, t, c, p in points],
                    final={"pass@1": end, "pass@8": min(1.0, 1.5 * end), "entropy": 0.5, "truncated": 0.1},
                )
            )
    return lines
