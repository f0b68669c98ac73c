"""By how much an arm's recorded runs are ahead of another's: as registered, and in other ways.

Arms are paired by seed and held-out problem.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from benchmarks.ablation.intervals import Interval, t_interval
from benchmarks.laptop import Run, by_arm, points, with_ends
from benchmarks.looks import TITLES

LOOKED_AT = (0.5, 0.8)  # of the shortest run's tokens: where a difference is taken too

Pair = tuple[Run, Run]


def crossed_interval(values: np.ndarray) -> Interval:
    """Return the mean with its 95 % interval over seeds and problems, both drawn at random.

    The variance of the mean is that of a two-way layout with random effects and one value a cell; degrees of freedom by
    Satterthwaite (Searle, Casella and McCulloch, Variance Components, 1992). Where the sum of mean squares is not
    above one of its parts, that part alone counts.

    Args:
        values: [seeds, problems], at least two of each.
    """
    seeds, problems = values.shape
    mean, rows, columns = values.mean(), values.mean(axis=1), values.mean(axis=0)
    rest = values - rows[:, None] - columns + mean
    freedom = np.array([seeds - 1, problems - 1, (seeds - 1) * (problems - 1)])
    squares = np.array([problems * rows.var() * seeds, seeds * columns.var() * problems, (rest**2).sum()]) / freedom
    combined, parts = squares @ [1, 1, -1], squares * [1, 1, 0]
    if combined <= parts.max():
        combined, used = parts.max(), freedom[parts.argmax()]
    else:
        used = combined**2 / (squares**2 / freedom).sum()
    half = stats.t.ppf(0.975, used) * np.sqrt(combined / values.size)
    return Interval(float(mean), float(mean - half), float(mean + half), seeds)


def pairs(runs: Sequence[Run], arm: str, reference: str) -> list[Pair]:
    """Return an arm's and the reference's runs of each common seed."""
    own, other = ({run.seed: run for run in runs if run.arm == name} for name in (arm, reference))
    return [(own[seed], other[seed]) for seed in sorted(own.keys() & other.keys())]


def differences(paired: Sequence[Pair], without: str = "") -> np.ndarray:
    """Return by how much more an arm's run solves each held-out problem at its end than the reference's.

    Args:
        paired: runs of a seed.
        without: a kind of problem that is left out.

    Returns:
        [seeds, problems].
    """
    levels = paired[0][0].after.get("levels", {})
    uids = [uid for uid in sorted(paired[0][0].after["correct"]) if not without or levels[uid] != without]
    return np.array([[own.after["correct"][u] - other.after["correct"][u] for u in uids] for own, other in paired])


def ahead(runs: Sequence[Run], arm: str, reference: str) -> Interval | None:
    """Return an arm's final held-out pass@1 minus the reference's over common seeds; None with fewer than two."""
    paired = pairs(runs, arm, reference)
    return crossed_interval(differences(paired)) if len(paired) > 1 else None


def doubts(runs: Sequence[Run], arm: str = "r3", reference: str = "grpo") -> str:
    """Tabulate what a difference is when it is taken in other ways than the registered one; from three seeds on.

    The last row is the exact test of a mean of 0 by flipping the signs of the seeds' differences, two-sided.
    """
    paired = pairs(runs, arm, reference)
    if len(paired) < 3:
        return f"{arm} and {reference} have {len(paired)} seeds in common: too few to take the difference otherwise"
    found = {"as registered": crossed_interval(differences(paired))}
    found["errors pooled over all arms"] = _pooled(runs, arm, reference)
    alike = [pair for pair in paired if one_processor(*pair)]
    if 1 < len(alike) < len(paired):
        seeds = ", ".join(str(own.seed) for own, _ in alike)
        found[f"seeds on one kind of processor: {seeds}"] = crossed_interval(differences(alike))
    kinds = {kind: differences(paired, kind) for kind in sorted(set(paired[0][0].after["levels"].values()))}
    # The kind that the difference owes most to is that whose absence leaves the least of it.
    sign = np.sign(found["as registered"].mean)
    most = min(kinds, key=lambda kind: float(sign * kinds[kind].mean()))
    found[f"without `{most}`"] = crossed_interval(kinds[most])
    shortest = min(run.curve[-1][0] for pair in paired for run in pair)
    for tokens in (shortest * share for share in LOOKED_AT):
        found[f"at {tokens / 1000:.0f}k tokens, by seed"] = t_interval(
            [_at(own, tokens) - _at(other, tokens) for own, other in paired]
        )
    found["after as many steps, by seed"] = t_interval(
        [_at_step(own, other.steps) - _at_step(other, own.steps) for own, other in paired]
    )
    found["mean over the run, by seed"] = t_interval([area(own) - area(other) for own, other in paired])
    gaps = np.array([_end(own) - _end(other) for own, other in paired])
    flipped = stats.permutation_test((gaps,), np.mean, permutation_type="samples").pvalue
    rows = {name: with_ends(gap) for name, gap in found.items()} | {
        "seed after seed": ", ".join(map(points, gaps)),
        f"signs flipped; p of {len(gaps)} seeds is {2 / 2 ** len(gaps):.2g} or more": f"p = {flipped:.2g}",
    }
    title = f"{TITLES.get(arm, arm)}, minus {TITLES.get(reference, reference)} [95 %]"
    heads = [f"| how the difference is taken | {title} |", "|---|---|"]
    return "\n".join([*heads, *(f"| {name} | {cell} |" for name, cell in rows.items())])


def _pooled(runs: Sequence[Run], arm: str, reference: str) -> Interval:
    """Return a difference of means with the error of a two-way layout of the arms that have all of its seeds."""
    seeds = {own.seed for own, _ in pairs(runs, arm, reference)}
    arms = {name: own for name, own in by_arm(runs).items() if seeds <= {run.seed for run in own}}
    values = {name: np.array([_end(run) for run in own if run.seed in seeds]) for name, own in arms.items()}
    table = np.array(list(values.values()))
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    freedom = (len(arms) - 1) * (len(seeds) - 1)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(2 * (rest**2).sum() / freedom / len(seeds))
    gap = values[arm].mean() - values[reference].mean()
    return Interval(float(gap), float(gap - half), float(gap + half), len(seeds))


def _at(run: Run, tokens: float) -> float:
    """Return the held-out pass@1 after so many generated tokens, between evaluations on a line."""
    return float(np.interp(tokens, *np.transpose(run.curve)))


def _at_step(run: Run, step: int) -> float:
    """Return the held-out pass@1 after a step, or at the end of a shorter run; all steps count as equally long."""
    return _at(run, run.curve[-1][0] * step / run.steps)


def _end(run: Run) -> float:
    return float(run.after["metrics"]["pass@1"])


def area(run: Run) -> float:
    """Return the mean held-out pass@1 over generated tokens."""
    tokens, values = np.transpose(run.curve)
    return float(np.trapezoid(values, tokens) / (tokens[-1] - tokens[0]))


def one_processor(own: Run, other: Run) -> bool:
    """Return whether two runs of a seed evaluated alike before training: kinds of processors round otherwise."""
    return bool(own.before["correct"] == other.before["correct"])
