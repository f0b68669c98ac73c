"""Runs of docs/evidence/*.json, as stored and as an ablation reads them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablation.learned import Curve, Learnt

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
# Columns of `evaluations` that say where a run was.
_STEP, _TOKENS = "step", "generated_tokens"

Run = dict[str, Any]


def runs(name: str, arm: str) -> dict[int, Run]:
    """Return the runs of an arm by seed, from `docs/evidence/NAME.json`."""
    return {run["seed"]: run for run in _stored(name) if run["arm"] == arm}


def finished(name: str, arms: Sequence[str]) -> dict[str, list[Learnt]]:
    """Return arm → its runs by seed, in the order given.

    A record has evaluations alone, so `training` is empty.

    Raises:
        ValueError: the file has no run of an arm.
    """
    found = {arm: [_learnt(run) for _, run in sorted(runs(name, arm).items())] for arm in arms}
    if missing := [arm for arm, own in found.items() if not own]:
        raise ValueError(f"{name}.json: has no run of {', '.join(missing)}")
    return found


def _stored(name: str) -> list[Run]:
    return json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))


def _learnt(run: Run) -> Learnt:
    columns = {name: np.array(values, float) for name, values in run["evaluations"].items()}
    steps, tokens = columns.pop(_STEP), columns.pop(_TOKENS)
    return Learnt(
        arm=run["arm"],
        seed=run["seed"],
        folder=Path(run.get("folder", "")),
        settings_hash=run.get("settings_hash", ""),
        wall_s=run["wall_s"],
        held_out=Curve(steps, tokens, columns),
        training=Curve.of([]),
    )
