"""Records of runs with a few held-out problems."""

from types import SimpleNamespace

import numpy as np


def run(arm, seed, shares, cpu_s=50.0, first=0.0, half=None, machine="2 cores"):
    sides = {
        "before": {"metrics": {"pass@1": 0.0}, "correct": {"p0": first}},
        "after": {
            "metrics": {"pass@1": float(np.mean(shares)), "truncated": 0.25},
            "correct": {f"p{i}": v for i, v in enumerate(shares)},
            "levels": {f"p{i}": ("commas", "questions")[i % 2] for i in range(len(shares))},
        },
    }
    end = float(np.mean(shares))
    curve = [[0.0, 0.0], *([[50_000.0, half]] if half is not None else []), [100_000.0, end]]
    own = {"steps": 5 if arm == "r3" else 10, "cpu_s": cpu_s, "curve": curve, "machine": machine}
    return SimpleNamespace(arm=arm, seed=seed, generated_tokens=1000, **own, **sides)
