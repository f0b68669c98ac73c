"""Recompute the published results of the registered suite from its records: `python -m benchmarks.suite`.

The suite asked whether a method helps where groups are silent; docs/results/evidence.md names the commit whose code
made the runs. Tasks are fixed, the bases of a task are a sample: an interval says what other bases and seeds of the
same tasks might have given. Runs are rows of equally long arrays; weights say how often a bootstrap draw counts a run.
"""

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, PercentFormatter
from scipy import special

from benchmarks.looks import TITLES, Line, draw_lines

RECORDS = Path(__file__).parents[1] / "docs" / "evidence" / "suite.jsonl"
IDLE = RECORDS.with_name("suite-idle.jsonl")  # a sample of the runs again, with nothing beside them
AXES = {"tokens": 160_000.0, "cpu_s": None}  # the registered budget; of CPU seconds where the shortest run ends
DIFFICULTIES = ("easy", "medium", "blind")
FINAL = ("pass@1", "pass@8", "entropy", "truncated")
REFERENCE = "r3"  # the arm that the others are compared with
DRAWS = 10_000
MARGIN = 0.02
_POINTS = 121


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        phase: `test`, or `sweep` of the learning rates.
        task: what it was trained on.
        difficulty: `easy`, `medium` or `blind`: how often the base was correct.
        skill: `none` or `own_failures`: what the base had learned of second turns.
        base: replicate of the base model.
        arm: the method.
        seed: of the run.
        lr: learning rate.
        curve: [points] of `tokens` and `cpu_s` since the start, and of `pass@1` on held-out problems.
        final: see `FINAL`, at its end.
    """

    phase: str
    task: str
    difficulty: str
    skill: str
    base: int
    arm: str
    seed: int
    lr: float
    curve: Mapping[str, np.ndarray]
    final: Mapping[str, float]

    @property
    def name(self) -> str:
        """The run's unique name."""
        place = f"{self.phase}/{self.task}/{self.difficulty}/{self.skill}/base-{self.base}"
        return f"{place}/{self.arm}/seed-{self.seed}/lr-{self.lr:g}"

    @property
    def stratum(self) -> str:
        """Task and difficulty: within them bases are resampled."""
        return f"{self.task}, {self.difficulty}"

    @property
    def cluster(self) -> str:
        """The base within its stratum; replicates of two skills are two models, trained apart."""
        return f"{self.skill}-{self.base}"

    @property
    def cell(self) -> str:
        """Task, difficulty and skill: only runs that agree in all three are the same exercise."""
        return f"{self.stratum}, {self.skill}"

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """The base, then its difficulty and the arm: what differences are paired by."""
        return self.task, self.skill, self.base, self.difficulty, self.arm


def read(file: Path = RECORDS) -> list[Run]:
    """Return the runs, in the file's order."""
    found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [Run(**{field.name: _columns(line)[field.name] for field in fields(Run)}) for line in found]


def _columns(line: dict[str, Any]) -> dict[str, Any]:
    points = line["curve"]
    return {**line, "curve": {key: np.array([point[key] for point in points], float) for key in points[0]}}


@functools.cache
def tested() -> tuple[Run, ...]:
    """Return the runs of the test, by name."""
    return tuple(sorted((run for run in read() if run.phase == "test"), key=lambda run: run.name))


@functools.cache
def scores(axis: str) -> np.ndarray:
    """Return the area of each of the test's runs over an axis, [runs]."""
    return areas(tested(), axis, AXES[axis])


def areas(runs: Sequence[Run], axis: str, budget: float | None = None) -> np.ndarray:
    """Return each run's mean held-out pass@1 over [0, budget], straight between two measurements: [runs].

    Args:
        runs: at least one.
        axis: `tokens` or `cpu_s`.
        budget: the same for all runs; by default, for each task, difficulty and skill, where its shortest run ends.
    """
    ends: dict[str, float] = {}
    for run in runs:
        ends[run.cell] = min(float(run.curve[axis][-1]), ends.get(run.cell, np.inf))
    found = []
    for run in runs:
        points, end = run.curve[axis], ends[run.cell] if budget is None else budget
        places = np.concatenate([[0.0], points[(points > 0) & (points < end)], [end]])
        found.append(float(np.trapezoid(np.interp(places, points, run.curve["pass@1"]), places) / end))
    return np.array(found)


class Estimate(NamedTuple):
    """A statistic of the runs with the ends of its interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of the middle half of all scores, a quarter of their weight trimmed from either end.

    As in rliable (arXiv 2108.13264), over the pooled runs of all tasks. A run on the edge of the middle half counts
    with the part that lies inside: of 6 runs the second and the fifth count half. Where the runs are no multiple of
    four, SciPy's `trim_mean`, which rliable calls, drops whole runs only and trims less.

    Args:
        scores: [runs], at least one.
        weights: [draws, runs], not negative, with a positive sum; 1 each by default.

    Returns:
        A scalar array, or [draws].
    """
    order = np.argsort(scores)
    ranked = np.asarray(scores, float)[order]
    weights = np.ones(len(ranked)) if weights is None else weights[..., order]
    reached = np.cumsum(weights, axis=-1)
    total = reached[..., -1:]
    kept = np.diff(np.clip(reached, 0.25 * total, 0.75 * total), axis=-1, prepend=0.25 * total)
    return kept @ ranked / (0.5 * total[..., 0])


def stratified_mean(values: np.ndarray, strata: Sequence[str], weights: np.ndarray | None = None) -> np.ndarray:
    """Return the mean of `values`, [runs] or [runs, points], in which every stratum weighs the same.

    With weights, [draws, runs], the result has draws in front.
    """
    names = np.asarray(strata)
    rows = np.ones((1, len(names))) if weights is None else weights
    shares = np.zeros(rows.shape)
    members = [names == name for name in np.unique(names)]
    for member in members:
        shares[:, member] = rows[:, member] / rows[:, member].sum(axis=1, keepdims=True) / len(members)
    means = shares @ np.asarray(values, float)
    return means[0] if weights is None else means


def base_weights(strata: Sequence[str], bases: Sequence[str], draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Resample bases with replacement within each stratum; all runs of a base, of whatever arm, are drawn together.

    Of n bases a draw takes n − 1, and each counts n / (n − 1) times (Rao, Wu and Yue 1992). Taking n would understate
    the variance by the factor (n − 1) / n, which is half with two bases.

    Args:
        strata: [runs], the stratum of each run: what is not resampled; each has at least two bases.
        bases: [runs], the base of each run; equal labels in two strata are two bases.
        draws: how many.
        seed: of the generator.

    Returns:
        [draws, runs].
    """
    names, labels = np.asarray(strata), np.asarray(bases)
    rng = np.random.default_rng(seed)
    weights = np.empty((draws, len(names)))
    for name in np.unique(names):
        member = names == name
        found, which = np.unique(labels[member], return_inverse=True)
        count = len(found)
        drawn = rng.multinomial(count - 1, np.full(count, 1 / count), size=draws) * (count / (count - 1))
        weights[:, member] = drawn[:, which]
    return weights


def widen(value: float, draws: np.ndarray, freedom: float) -> np.ndarray:
    """Stretch the draws' deviations from the value, from a normal distribution's quantiles to Student's t.

    A bootstrap takes the spread that it found for the true one, which few bases do not give. Of the degrees of freedom,
    bases minus strata, an interquartile mean has about half: its middle half of the runs. With that, 95 % intervals of
    differences cover 94 to 95 % of simulated ones from 8 strata of two bases on, against 86 to 93 % without.
    """
    ranks = np.empty(len(draws))
    ranks[np.argsort(draws, kind="stable")] = np.arange(len(draws))
    # The two tails mirror each other; the median itself would be 0 / 0, and deviates by nothing worth stretching.
    tail = np.minimum(np.minimum(ranks, len(draws) - 1 - ranks) + 0.5, len(draws) / 2 - 0.5) / len(draws)
    return value + (draws - value) * special.stdtrit(freedom, tail) / special.ndtri(tail)


def interval(value: float, draws: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Return the value with its percentile interval over the draws."""
    low, high = (float(np.quantile(draws, share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2))
    return Estimate(float(value), low, high)


def paired_mean(differences: Sequence[float]) -> Estimate:
    """Return the mean of paired differences, at least two, with its 95 % interval by Student's t."""
    values = np.asarray(differences, float)
    reach = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return Estimate(float(values.mean()), float(values.mean() - reach), float(values.mean() + reach))


def two_sided_p(draws: np.ndarray) -> float:
    """Return the p-value of "the difference is zero": twice the smaller tail of the draws beyond zero.

    It inverts the percentile interval. The observed runs count as one more draw on that side, so it is never zero.
    """
    tail = min(int(np.sum(draws <= 0)), int(np.sum(draws >= 0)))
    return min(1.0, 2 * (tail + 1) / (len(draws) + 1))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Adjust p-values for their number by Holm's step-down method; at most 1, in the order given."""
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return adjusted


@dataclass(frozen=True)
class Side:
    """The runs of one arm: scores and cells [runs], within which runs are paired, and weights [draws, runs]."""

    scores: np.ndarray
    cells: np.ndarray
    weights: np.ndarray


def probability_of_improvement(first: Side, second: Side) -> tuple[float, np.ndarray]:
    """Return the mean over cells of P(X > Y) + ½ P(X = Y), X and Y random runs of the two arms, and [draws] of it.

    The draws resample placements, the part of the other arm's runs that a run is above (DeLong's linear form).
    Reweighting the pairs themselves would only ever pair runs of one base where a cell has two.
    """
    values, draws = [], np.zeros(len(first.weights))
    for name in np.unique(first.cells):
        ours, theirs = first.cells == name, second.cells == name
        x, y = first.scores[ours][:, None], second.scores[theirs]
        above = np.where(x == y, 0.5, x > y)
        value = above.mean()
        values.append(value)
        draws += value
        for weights, placements in (
            (first.weights[:, ours], above.mean(axis=1)),
            (second.weights[:, theirs], above.mean(axis=0)),
        ):
            # Over the number of runs: a draw may have no run of a cell whose stratum has further bases.
            draws += weights @ (placements - value) / len(placements)
    return float(np.mean(values)), np.clip(draws / len(values), 0, 1)


@dataclass(frozen=True)
class Difference:
    """The reference arm minus another one.

    Args:
        iqm: difference of the interquartile means, with its 95 % interval.
        iqm_90: with its 90 % interval: two one-sided tests at 5 % of equivalence.
        p_holm: two-sided bootstrap p-value of that difference, adjusted for the number of other arms.
        improvement: probability that a run of the reference beats one of the other arm, with its 95 % interval.
    """

    iqm: Estimate
    iqm_90: Estimate
    p_holm: float
    improvement: Estimate

    @property
    def verdict(self) -> str:
        """The verdict on the reference arm: a difference at 5 %, Holm-adjusted, or else equivalence."""
        same = -MARGIN < self.iqm_90.low and self.iqm_90.high < MARGIN
        if self.p_holm < 0.05:
            return ("ahead" if self.iqm.value > 0 else "behind") + (f", by less than {MARGIN}" if same else "")
        return f"equivalent within {MARGIN}" if same else "indistinguishable"


def compare(
    runs: Sequence[Run], scores: Sequence[float] | np.ndarray, reference: str = REFERENCE, *, draws: int = DRAWS
) -> tuple[dict[str, Estimate], dict[str, Difference]]:
    """Return arm → interquartile mean, and each other arm → the reference minus it; all arms share the draws of bases.

    Bases of both skills are drawn from together, so a skill may have a single base. What skill does to a difference
    then counts as spread between bases: intervals are rather too wide.

    Args:
        runs: of arms over the same bases.
        scores: [runs].
        reference: the arm that the others are compared with.
        draws: bootstrap draws.
    """
    values, names = np.asarray(scores, float), np.array([run.arm for run in runs])
    strata, cells = [run.stratum for run in runs], np.array([run.cell for run in runs])
    clusters = [run.cluster for run in runs]
    weights = base_weights(strata, clusters, draws)
    freedom = (len(set(zip(strata, clusters, strict=True))) - len(set(strata))) / 2
    sides = {
        arm: Side(values[names == arm], cells[names == arm], weights[:, names == arm]) for arm in dict.fromkeys(names)
    }
    points = {arm: float(interquartile_mean(side.scores)) for arm, side in sides.items()}
    drawn = {arm: interquartile_mean(side.scores, side.weights) for arm, side in sides.items()}
    gaps = {
        arm: widen(points[reference] - points[arm], drawn[reference] - drawn[arm], freedom)
        for arm in sides
        if arm != reference
    }
    differences = {}
    for (arm, gap), p_holm in zip(gaps.items(), holm([two_sided_p(gap) for gap in gaps.values()]), strict=True):
        value = points[reference] - points[arm]
        improvement = interval(*probability_of_improvement(sides[reference], sides[arm]))
        differences[arm] = Difference(interval(value, gap), interval(value, gap, 0.9), float(p_holm), improvement)
    return {arm: interval(points[arm], widen(points[arm], drawn[arm], freedom)) for arm in sides}, differences


def in_short() -> str:
    """Return each arm's level, and R³ minus it over tokens and CPU seconds."""
    levels, by_tokens = compare(tested(), scores("tokens"))
    _, by_seconds = compare(tested(), scores("cpu_s"))
    rows = []
    for arm in arms():
        cells = [_estimate(side[arm].iqm, "+") if arm in side else "" for side in (by_tokens, by_seconds)]
        rows.append([TITLES[arm], _estimate(levels[arm]), *cells])
    return markdown(["arm", "mean held-out pass@1", "R³ minus it", "R³ minus it, equal CPU seconds"], rows, texts=4)


def compared(axis: str) -> str:
    """Return R³ against every other arm on one axis, with p-values and verdicts."""
    levels, differences = compare(tested(), scores(axis))
    rows = []
    for arm in arms():
        cells = [arm, str(sum(run.arm == arm for run in tested())), _estimate(levels[arm])]
        if other := differences.get(arm):
            p = "< 0.001" if other.p_holm < 0.001 else f"{other.p_holm:.3f}"
            # Without an interval where the draws cannot vary it: each skill has one base.
            chance = other.improvement
            written = f"{chance.value:.3f}" if chance.low == chance.high else _estimate(chance)
            cells += [_estimate(other.iqm, "+"), p, written, other.verdict]
        rows.append(cells + ["–"] * (7 - len(cells)))
    headings = ["arm", "runs", "IQM [95 %]", f"{REFERENCE} minus arm [95 %]", "p (Holm)"]
    return markdown([*headings, f"P({REFERENCE} > arm) [95 %]", f"{REFERENCE} is"], rows)


def by_part(reference: str = REFERENCE) -> str:
    """Return paired differences over generated tokens in each difficulty, each skill, and each pair of them."""
    runs = tested()
    score = {run.place: value for run, value in zip(runs, scores("tokens"), strict=True)}
    bases = sorted({place[:3] for place in score})
    others = arms(reference)[1:]
    levels = [level for level in DIFFICULTIES if any(run.difficulty == level for run in runs)]
    rows = []
    for level, skill in itertools.product([None, *levels], [None, *sorted({base[1] for base in bases})]):
        within = [one for one in levels if level in (None, one)]
        there = [base for base in bases if any((*base, one, reference) in score for one in within)]
        here = [base for base in there if skill in (None, base[1])]
        gaps = [[_gap(score, base, within, reference, arm) for base in here] for arm in others]
        name = ", ".join(filter(None, (level, skill))) or "all"
        rows.append([name, str(len(here)), *(_estimate(paired_mean(gap), "+") for gap in gaps)])
    return markdown(["part", "bases", *others], rows)


def by_task() -> str:
    """Return the last held-out pass@1 of each task, difficulty and skill."""
    cells = sorted({(run.task, DIFFICULTIES.index(run.difficulty), run.skill) for run in tested()})
    rows = []
    for task, level, skill in cells:
        here = [run for run in tested() if (run.task, run.difficulty, run.skill) == (task, DIFFICULTIES[level], skill)]
        finals = [[run.final["pass@1"] for run in here if run.arm == arm] for arm in arms()]
        before = np.mean([run.curve["pass@1"][0] for run in here])
        means = [f"{np.mean(values):.3f}" if values else "–" for values in finals]
        rows.append([task, DIFFICULTIES[level], skill, str(len(here)), f"{before:.3f}", *means])
    return markdown(["task", "difficulty", "skill", "runs", "before", *arms()], rows, texts=3)


def ends() -> str:
    """Return what the runs are like at their ends, every cell weighing the same, and R³ minus each arm there."""
    rows, others = [], arms()[1:]
    for arm in arms():
        own = [run for run in tested() if run.arm == arm]
        lasts = [[*(run.final[name] for name in FINAL), run.curve["tokens"][-1], run.curve["cpu_s"][-1]] for run in own]
        *final, tokens, cpu_s = stratified_mean(np.array(lasts), [run.cell for run in own])
        rows.append([arm, str(len(own)), *(f"{value:.3f}" for value in final), f"{tokens:,.0f}", f"{cpu_s:,.0f}"])
    table = markdown(["arm", "runs", *FINAL, "generated tokens", "CPU seconds"], rows)
    rows = []
    for name in FINAL:
        score = {run.place: run.final[name] for run in tested()}
        bases = sorted({place[:3] for place in score})
        gaps = [[_gap(score, base, DIFFICULTIES, REFERENCE, arm) for base in bases] for arm in others]
        rows.append([name, *(_estimate(paired_mean(gap), "+") for gap in gaps)])
    return f"{table}\n\nR³ minus the arm:\n\n{markdown(['at the end', *others], rows)}"


def idle() -> str:
    """Return CPU seconds of each arm's runs in the test, two at a time, and of the same runs on the idle machine."""
    first = {run.name: run for run in read()}
    found = [(first[run.name], run) for run in read(IDLE)]
    total, rows = {}, []
    for arm in sorted({run.arm for _, run in found}, key=lambda arm: (arm != REFERENCE, arm)):
        own = [pair for pair in found if pair[1].arm == arm]
        seconds = np.mean([[run.curve["cpu_s"][-1] for run in pair] for pair in own], axis=0)
        same = sum(all(np.array_equal(a.curve[key], b.curve[key]) for key in ("tokens", "pass@1")) for a, b in own)
        total[arm] = len(own), float(seconds[0]), float(seconds[1]), same
    _, test_of_grpo, idle_of_grpo, _ = total["grpo"]
    for arm, (count, test, alone, same) in total.items():
        ratios = (alone / test, test / test_of_grpo, alone / idle_of_grpo)
        numbers = [f"{test:.1f}", f"{alone:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
        rows.append([arm, str(count), *numbers, f"{same} of {count}"])
    headings = ["arm", "runs", "in the test", "idle", "idle / test", "to GRPO, test", "to GRPO, idle", "same curve"]
    return markdown(headings, rows)


def rates() -> str:
    """Return a line per arm of the sweep: mean last pass@1 of each learning rate, the best first."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in read():
        if run.phase == "sweep":
            found.setdefault(run.arm, {}).setdefault(run.lr, []).append(run.final["pass@1"])
    lines = []
    for arm, by_rate in found.items():
        best_first = sorted(by_rate.items(), key=lambda item: -float(np.mean(item[1])))
        lines.append(f"{arm}: " + ", ".join(f"{lr} {np.mean(values):.3f} ({len(values)})" for lr, values in best_first))
    return "\n".join(lines)


def arms(reference: str = REFERENCE) -> list[str]:
    """Return the test's arms, the reference first."""
    return sorted({run.arm for run in tested()}, key=lambda arm: (arm != reference, arm))


def _gap(score: Mapping[tuple[Any, ...], float], base: Any, levels: Sequence[str], first: str, second: str) -> float:
    """Return by how much one arm is above another on a base, over the difficulties that it has."""
    own = [level for level in levels if (*base, level, first) in score]
    return float(np.mean([score[*base, level, first] - score[*base, level, second] for level in own]))


def draw_curves(path: Path) -> None:
    """Draw each arm's held-out pass@1 over generated tokens, every task with the same weight; replace the PNG.

    The band holds 95 % of the bootstrap draws at each point. Runs are straight between evaluations, and not smoothed.
    """
    where = np.linspace(0, AXES["tokens"] or 0.0, _POINTS)
    values = np.array([np.interp(where, run.curve["tokens"], run.curve["pass@1"]) for run in tested()])
    tasks = np.array([run.task for run in tested()])

    def mean(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        return stratified_mean(values[members], tasks[members], weights)

    labels = "Held-out pass@1, mean over tasks", "generated tokens"
    draw_lines(path, labels, where, _lines(mean), EngFormatter(sep=""))


def draw_profiles(path: Path) -> None:
    """Draw each arm's share of runs whose area over generated tokens is above a threshold; replace the PNG."""
    found = scores("tokens")
    where = np.linspace(0, max(0.01, 1.02 * found.max()), _POINTS)

    def share(members: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        above = found[members][:, None] > where
        return above.mean(axis=0) if weights is None else weights @ above / weights.sum(axis=1, keepdims=True)

    labels = "Share of runs above a threshold", "threshold: mean held-out pass@1 over generated tokens"
    draw_lines(path, labels, where, _lines(share), PercentFormatter(1.0))


def _lines(line: Callable[[np.ndarray, np.ndarray | None], np.ndarray]) -> dict[str, Line]:
    """Return arm → its line and band, from its runs' places and their weights [draws, runs]; the reference is first."""
    weights = base_weights([run.stratum for run in tested()], [run.cluster for run in tested()])
    names = np.array([run.arm for run in tested()])
    found = {}
    for arm in arms():
        members = np.flatnonzero(names == arm)
        ends = np.quantile(line(members, weights[:, members]), (0.025, 0.975), axis=0)
        found[arm] = Line(len(members), line(members, None), ends)
    return found


def _estimate(estimate: Estimate, sign: str = "") -> str:
    value, low, high = (f"{number:{sign}.3f}" for number in estimate)
    return f"{value} [{low}, {high}]"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a Markdown table; columns behind the first `texts` are numbers."""
    ruler = [*["---"] * texts, *["---:"] * (len(headings) - texts)]
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows)]
    return "\n".join(lines)


def main() -> None:
    """Print every table of the test, of the runs on the idle machine and of the sweep."""
    tables = [in_short(), *map(compared, AXES), by_part(), by_part("grpo"), by_task(), ends(), idle(), rates()]
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
