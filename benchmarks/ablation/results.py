"""The files of an ablation: results.json, table.md and curves.png, which are rewritten after every run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.utils.files import write_json, write_text
from benchmarks.ablation.figure import draw
from benchmarks.ablation.intervals import Interval, t_interval
from benchmarks.ablation.learned import CPU, Learnt, cpu_until, learned
from benchmarks.ablation.plan import Job
from benchmarks.ablation.stored import State, state
from benchmarks.ablation.table import differences, places, table

# Counts whose sums over a run say what a mechanism had to do.
TOTALS = ("ranking/groups", "ranking/ordered", "replay/added", "reflection/prompts")


def write_results(jobs: Sequence[Job], codes: Mapping[str, int], out: Path) -> str:
    """Write the current results, and return the table.

    Args:
        jobs: all runs of the ablation.
        codes: exit codes of those that have ended, by name.
        out: the ablation's folder.
    """
    states = {job.name: state(job) for job in jobs}
    arms = list(dict.fromkeys(job.arm for job in jobs))
    results = {
        arm: [learned(job) for job in jobs if job.arm == arm and states[job.name] is State.FINISHED] for arm in arms
    }
    missing = [_without_result(job, states[job.name], codes) for job in jobs if states[job.name] is not State.FINISHED]
    text = table(results, missing)
    finished = {arm: runs for arm, runs in results.items() if runs}
    write_json(out / "results.json", as_data(finished, missing))
    write_text(out / "table.md", text)
    if finished:
        draw(finished, out / "curves.png")
    return text


def _without_result(job: Job, now: State, codes: Mapping[str, int]) -> str:
    if codes.get(job.name):
        return f"{job.name}: failed with exit code {codes[job.name]}, see {job.log}"
    return f"{job.name}: {'not finished' if now is State.BEGUN else 'not begun'}"


def as_data(results: Mapping[str, Sequence[Learnt]], missing: Sequence[str]) -> dict[str, Any]:
    """Return everything in the table, and every run's evaluations, as plain data."""
    first = next(iter(results), None)
    return {
        "pass@1": {
            place.heading: {
                arm: _ends(t_interval([place.accuracy(run) for run in runs])) for arm, runs in results.items()
            }
            for place in (places(results) if results else [])
        },
        "difference": {
            f"{arm} - {first}": {
                place.heading: _ends(interval) for place, interval in differences(results[first], runs)
            }
            for arm, runs in results.items()
            if first is not None and arm != first
        },
        "runs": [_run(run) for arm in results.values() for run in arm],
        "without_result": list(missing),
    }


def _run(run: Learnt) -> dict[str, Any]:
    curve = run.held_out
    return {
        "arm": run.arm,
        "seed": run.seed,
        "folder": run.folder,
        "settings_hash": run.settings_hash,
        "steps": run.steps,
        "generated_tokens": run.tokens,
        "wall_s": run.wall_s,
        "totals": {tag: float(np.nansum(run.training.values[tag])) for tag in TOTALS if tag in run.training.values},
        "evaluations": {
            "step": curve.steps.astype(int).tolist(),
            "generated_tokens": curve.tokens.astype(int).tolist(),
            **({"cpu_s": cpu_until(run.training, curve.steps).round(3).tolist()} if CPU in run.training.values else {}),
            **{name: values.tolist() for name, values in curve.values.items()},
        },
    }


def _ends(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "seeds": interval.count}
