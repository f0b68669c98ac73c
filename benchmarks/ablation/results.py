"""The files of an ablation: results.json, table.md and curves.png, which are rewritten after every run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.utils.files import write_json, write_text
from benchmarks.ablation.figure import draw
from benchmarks.ablation.intervals import Interval, paired_difference, t_interval
from benchmarks.ablation.learned import CPU, PASS_AT_1, Learnt, cpu_until, learned
from benchmarks.ablation.plan import Job, State, state

ByArm = Mapping[str, Sequence[Learnt]]


@dataclass(frozen=True)
class Place:
    """Where runs are compared.

    Args:
        axis: `steps`, `tokens`, or nothing for each run's own end.
        at: how many of them.
        accuracy: a run's held-out pass@1 there.
    """

    axis: str
    at: int
    accuracy: Callable[[Learnt], float]

    @property
    def heading(self) -> str:
        """The place's name in a table."""
        return f"at {_thousands(self.at)} {self.axis}" if self.axis else "at its end"


def places(results: ByArm) -> list[Place]:
    """Return the places: steps of the shortest run, tokens of the one with the fewest, and each run's own end."""
    runs = [run for arm in results.values() for run in arm]
    steps, tokens = min(run.steps for run in runs), min(run.tokens for run in runs)
    return [
        Place("steps", steps, lambda run: run.accuracy(steps, axis="steps")),
        Place("tokens", tokens, lambda run: run.accuracy(tokens, axis="tokens")),
        Place("", 0, lambda run: run.final[PASS_AT_1]),
    ]


def differences(first: Sequence[Learnt], runs: Sequence[Learnt]) -> list[tuple[Place, Interval | None]]:
    """Compare an arm with the first, seed by seed, as far as these two go, whatever a third arm does."""
    return [
        (place, paired_difference(_by_seed(runs, place.accuracy), _by_seed(first, place.accuracy)))
        for place in places({"first": first, "other": runs})
    ]


def table(results: ByArm, missing: Sequence[str] = ()) -> str:
    """Return the whole page.

    Args:
        results: arm → its finished runs; the first arm is what the others are compared with.
        missing: what is said about each run that has no result.
    """
    results = {arm: runs for arm, runs in results.items() if runs}
    parts = ["# Ablation\n"]
    if results:
        parts.append("Held-out pass@1, mean over seeds [95 % interval].\n\n" + levels(results))
        first, *others = results
        if others:
            parts.append(
                f"Difference to {first} with the same seed, mean [95 % interval], where both arms have got to; bold "
                f"where the interval excludes zero.\n\n{paired(results)}"
            )
    if missing:
        parts.append("Without a result:\n\n" + "\n".join(f"- {line}" for line in missing) + "\n")
    return "\n".join(parts)


def levels(results: ByArm) -> str:
    """Return every arm's held-out pass@1 at the places that all arms have reached, as Markdown.

    Args:
        results: arm → its finished runs, at least one each.
    """
    where = places(results)
    headings = ["arm", "seeds", "before", *(place.heading for place in where)]
    headings += ["truncated at its end", "steps", "generated tokens", "minutes"]
    rows = []
    for arm, runs in results.items():
        accuracies = [t_interval([place.accuracy(run) for run in runs]) for place in where]
        rows.append(
            [
                arm,
                str(len(runs)),
                f"{np.mean([run.accuracy(0, axis='steps') for run in runs]):.3f}",
                *(_with_ends(interval, "{:.3f}") for interval in accuracies),
                _share([run.final.get("truncated", np.nan) for run in runs]),
                f"{np.mean([run.steps for run in runs]):.0f}",
                _thousands(float(np.mean([run.tokens for run in runs]))),
                f"{np.mean([run.wall_s for run in runs]) / 60:.1f}",
            ]
        )
    return _markdown(headings, rows)


def paired(results: ByArm) -> str:
    """Return the differences of all arms to the first, as Markdown; bold where the interval excludes zero.

    Args:
        results: arm → its finished runs, at least one each.
    """
    (_, reference), *others = results.items()
    rows = []
    for arm, runs in others:
        found = differences(reference, runs)
        pairs = next((interval.count for _, interval in found if interval), 0)
        rows.append([arm, str(pairs), *(_difference(place, interval) for place, interval in found)])
    return _markdown(["arm", "pairs", "at equal steps", "at equal tokens", "at its end"], rows)


def _by_seed(runs: Sequence[Learnt], value: Callable[[Learnt], float]) -> dict[int, float]:
    return {run.seed: value(run) for run in runs}


def _difference(place: Place, interval: Interval | None) -> str:
    if interval is None:
        return "–"
    text = _with_ends(interval, "{:+.3f}")
    text = f"**{text}**" if interval.excludes_zero else text
    return f"{text} {place.heading}" if place.axis else text


def _with_ends(interval: Interval, form: str) -> str:
    mean = form.format(interval.mean)
    return f"{mean} [{form.format(interval.low)}, {form.format(interval.high)}]" if interval.count > 1 else mean


def _share(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.1f} %"


def _thousands(count: float) -> str:
    return f"{count / 1000:,.0f}k" if count >= 10_000 else f"{count:,.0f}"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (headings, ruler, *rows))


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
