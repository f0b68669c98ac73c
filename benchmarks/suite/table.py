"""The report of the suite, as Markdown: the reference arm against every other one, and what every task gave."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.suite.comparison import Comparison, compare
from benchmarks.suite.records import AXES, DIFFICULTIES, FINAL, REFERENCE, TOKENS, Run, areas
from benchmarks.suite.statistics import DRAWS, MARGIN, Estimate, paired_mean, stratified_mean

_MEANING_OF_TASKS = "Final held-out pass@1, mean over runs; `before` is the base's.\n"
_MEANING_OF_ENDS = "Means, every task, difficulty and skill weighing the same; entropy in nats per token.\n"
_AXES = {"tokens": "generated tokens", "cpu_s": "CPU seconds"}


def report(runs: Sequence[Run], *, tokens: float = TOKENS, reference: str = REFERENCE, draws: int = DRAWS) -> str:
    """Return the page.

    Args:
        runs: those of the test, by name.
        tokens: budget of generated tokens for every run; of CPU seconds it is, for each task, difficulty and skill,
            where its shortest run ends.
        reference: the arm that the others are compared with.
        draws: bootstrap draws.

    Raises:
        ValueError: arms over different bases; a task and difficulty with a single base; or a run that ends before the
            budget.
    """
    arms = ordered_arms(runs, reference)
    parts = ["# Suite\n", _origin(runs)]
    budgets = {"tokens": tokens, "cpu_s": None}
    scores = {axis: areas(runs, axis, budgets[axis]) for axis in AXES}
    for axis, values in scores.items():
        parts += [f"## Area over {_AXES[axis]}\n", _meaning(axis, budgets[axis], reference)]
        parts.append(comparison(runs, values, reference, draws=draws))
    parts.append(_legend(len(arms) - 1, draws))
    for axis, values in scores.items():
        title = f"## Parts of the test, area over {_AXES[axis]}\n"
        parts += [title, _meaning_of_parts(reference), differences_by_part(runs, values, arms)]
    parts += ["## Every task\n", _MEANING_OF_TASKS, final_by_task(runs, arms)]
    parts += ["## At the end of a run\n", _MEANING_OF_ENDS, ends(runs, arms)]
    parts += [_meaning_of_parts(reference), differences_at_the_end(runs, arms)]
    return "\n".join(parts)


def rates(runs: Sequence[Run]) -> str:
    """Return a line per arm of the sweep: mean last pass@1 of each learning rate, the best first."""
    lines = []
    for arm in dict.fromkeys(run.arm for run in runs):
        by_rate: dict[float, list[float]] = {}
        for run in runs:
            if run.arm == arm:
                by_rate.setdefault(run.lr, []).append(run.final["pass@1"])
        best_first = sorted(by_rate.items(), key=lambda item: -float(np.mean(item[1])))
        lines.append(f"{arm}: " + ", ".join(f"{lr} {np.mean(values):.3f} ({len(values)})" for lr, values in best_first))
    return "\n".join(lines)


def comparison(
    runs: Sequence[Run], scores: np.ndarray, reference: str = REFERENCE, *, draws: int = DRAWS, seed: int = 0
) -> str:
    """Return the table of a reference arm against every other one; arguments as of `compare_runs`."""
    found = compare_runs(runs, scores, reference, draws=draws, seed=seed)
    return _comparison(found, runs, ordered_arms(runs, reference))


def ordered_arms(runs: Sequence[Run], reference: str = REFERENCE) -> list[str]:
    """Return the runs' arms, the reference first."""
    return sorted({run.arm for run in runs}, key=lambda arm: (arm != reference, arm))


def compare_runs(
    runs: Sequence[Run], scores: np.ndarray, reference: str = REFERENCE, *, draws: int = DRAWS, seed: int = 0
) -> Comparison:
    """Compare arms on one score a run, with bases resampled within each task and difficulty.

    Bases of both skills are drawn from together, so a skill may have a single base. What skill does to a difference
    then counts as spread between bases: intervals are rather too wide.

    Args:
        runs: those of the test, all of them.
        scores: [runs].
        reference: the arm that the others are compared with.
        draws: bootstrap draws.
        seed: of their generator.

    Raises:
        ValueError: arms over different bases, or a task and difficulty with a single base.
    """
    return compare(
        scores,
        [run.arm for run in runs],
        [run.stratum for run in runs],
        [run.cluster for run in runs],
        reference,
        cells=[run.cell for run in runs],
        draws=draws,
        seed=seed,
    )


def _origin(runs: Sequence[Run]) -> str:
    origins = {"protocol": {run.protocol for run in runs}, "commit": {run.commit for run in runs}}
    facts = [f"{len({run.task for run in runs})} tasks", f"{len(runs)} runs"]
    facts += [f"{kind} {', '.join(sorted(f'`{value[:12]}`' for value in of))}" for kind, of in origins.items() if of]
    return "; ".join(facts) + ".\n"


def _meaning(axis: str, budget: float | None, reference: str) -> str:
    where = (
        "the shortest run of the same task, difficulty and skill" if budget is None else f"{budget:,.0f} {_AXES[axis]}"
    )
    return (
        f"Mean held-out pass@1 from the start to {where}; interquartile mean over all runs and tasks. Differences are "
        f"{reference} minus the arm.\n"
    )


def _comparison(found: Comparison, runs: Sequence[Run], arms: Sequence[str]) -> str:
    rows = []
    for arm in arms:
        cells = [arm, str(sum(run.arm == arm for run in runs)), _estimate(found.levels[arm])]
        if arm in found.differences:
            other = found.differences[arm]
            cells += [_estimate(other.iqm, "+"), _p(other.p_holm), _chance(other.improvement), other.verdict]
        rows.append(cells + ["–"] * (7 - len(cells)))
    reference = arms[0]
    headings = ["arm", "runs", "IQM [95 %]", f"{reference} minus arm [95 %]", "p (Holm)"]
    return markdown([*headings, f"P({reference} > arm) [95 %]", f"{reference} is"], rows)


def _legend(others: int, draws: int) -> str:
    return (
        f"Intervals: {draws:,} bootstrap draws of bases within each task and difficulty, the same bases for every arm; "
        f"not adjusted for their number. p: two-sided, Holm-adjusted over the {others} other arms, each table apart; "
        f"`ahead` and `behind` are p < 0.05. Equivalent within {MARGIN}: the 90 % interval lies within ±{MARGIN}. P: "
        "chance that a run of the one is above a run of the other in the same task, ties counting half; without an "
        "interval where each skill has a single base.\n"
    )


def differences_by_part(runs: Sequence[Run], scores: np.ndarray, arms: Sequence[str]) -> str:
    """Return the paired differences in each difficulty, each skill, and each pair of them, as a table.

    Args:
        runs: those of the test, all of them.
        scores: [runs].
        arms: the reference first.
    """
    reference, *others = arms
    score = {
        (run.task, run.skill, run.base, run.difficulty, run.arm): value for run, value in zip(runs, scores, strict=True)
    }
    bases = sorted({place[:3] for place in score})
    levels = [level for level in DIFFICULTIES if any(run.difficulty == level for run in runs)]
    skills = sorted({skill for _, skill, _ in bases})
    rows = []
    for level, skill in itertools.product([None, *levels], [None, *skills]):
        within = [one for one in levels if level in (None, one)]
        here = [
            base
            for base in bases
            if skill in (None, base[1]) and any((*base, one, reference) in score for one in within)
        ]
        gaps = [[_gap(score, base, within, reference, arm) for base in here] for arm in others]
        name = ", ".join(filter(None, (level, skill))) or "all"
        rows.append([name, str(len(here)), *(_estimate(paired_mean(gap), "+") for gap in gaps)])
    return markdown(["part", "bases", *others], rows)


def _meaning_of_parts(reference: str) -> str:
    return (
        f"{reference} minus the arm on the same base, mean [95 % by Student's t over bases], not adjusted for the "
        "number of comparisons. A base counts once: over several difficulties with its mean.\n"
    )


def _gap(score: Mapping[tuple[Any, ...], float], base: Any, levels: Sequence[str], first: str, second: str) -> float:
    """Return by how much one arm is above another on a base, over the difficulties that it has."""
    own = [level for level in levels if (*base, level, first) in score]
    return float(np.mean([score[*base, level, first] - score[*base, level, second] for level in own]))


def final_by_task(runs: Sequence[Run], arms: Sequence[str]) -> str:
    """Return the last held-out pass@1 of each task, difficulty and skill, as a table."""
    cells = sorted({(run.task, DIFFICULTIES.index(run.difficulty), run.skill) for run in runs})
    rows = []
    for task, level, skill in cells:
        here = [run for run in runs if (run.task, run.difficulty, run.skill) == (task, DIFFICULTIES[level], skill)]
        finals = [[run.final["pass@1"] for run in here if run.arm == arm] for arm in arms]
        before = np.mean([run.pass_at_1[0] for run in here])
        means = [f"{np.mean(values):.3f}" if values else "–" for values in finals]
        rows.append([task, DIFFICULTIES[level], skill, str(len(here)), f"{before:.3f}", *means])
    return markdown(["task", "difficulty", "skill", "runs", "before", *arms], rows, texts=3)


def ends(runs: Sequence[Run], arms: Sequence[str]) -> str:
    """Return means over all runs of an arm at their end, as a table."""
    rows = []
    for arm in arms:
        own = [run for run in runs if run.arm == arm]
        values = np.array([[*(run.final[name] for name in FINAL), run.tokens[-1], run.cpu_s[-1]] for run in own])
        *final, tokens, cpu_s = stratified_mean(values, [run.cell for run in own])
        rows.append([arm, str(len(own)), *(f"{value:.3f}" for value in final), f"{tokens:,.0f}", f"{cpu_s:,.0f}"])
    return markdown(["arm", "runs", *FINAL, "generated tokens", "CPU seconds"], rows)


def differences_at_the_end(runs: Sequence[Run], arms: Sequence[str]) -> str:
    """Return the paired differences in what the runs are like at their end, as a table; the reference is first."""
    reference, *others = arms
    rows = []
    for name in FINAL:
        final = {(run.task, run.skill, run.base, run.difficulty, run.arm): run.final[name] for run in runs}
        bases = sorted({place[:3] for place in final})
        gaps = [[_gap(final, base, DIFFICULTIES, reference, arm) for base in bases] for arm in others]
        rows.append([name, *(_estimate(paired_mean(gap), "+") for gap in gaps)])
    return markdown(["at the end", *others], rows)


def _estimate(estimate: Estimate, sign: str = "") -> str:
    value, low, high = (f"{number:{sign}.3f}" for number in estimate)
    return f"{value} [{low}, {high}]"


def _chance(estimate: Estimate) -> str:
    """Write a probability with its interval; without one where the draws cannot vary: each skill has one base."""
    return f"{estimate.value:.3f}" if estimate.low == estimate.high else _estimate(estimate)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a Markdown table; columns behind the first `texts` are numbers."""
    ruler = [*["---"] * texts, *["---:"] * (len(headings) - texts)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (headings, ruler, *rows))
