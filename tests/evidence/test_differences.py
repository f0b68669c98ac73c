"""Differences of recorded runs, in the registered way and in others."""

import numpy as np
import pytest

from benchmarks.differences import crossed_interval, doubts

from .runs import run


def test_the_interval_covers_seeds_and_problems_both_drawn_at_random():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        seeds, problems, rest = (
            rng.normal(0, scale, shape) for scale, shape in ((1, (4, 1)), (5, (1, 40)), (4, (4, 40)))
        )
        found = crossed_interval(2.0 + seeds + problems + rest)
        covered += found.low <= 2.0 <= found.high
    assert 0.92 < covered / 400 < 0.99


def test_the_interval_by_hand():
    # Seeds differ, problems do not: Student's t over two seeds, 12.706 standard errors of 1.
    only_seeds = crossed_interval(np.array([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]))
    assert (only_seeds.low, only_seeds.high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    same = crossed_interval(np.full((2, 3), 0.5))
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)


def test_a_difference_is_taken_in_other_ways_too():
    runs = [run("grpo", seed, [0.0, 0.5] * 2, half=0.1) for seed in range(3)]
    # Ahead by 50 points on commas, and by 0, 20 and 10 on questions. The third seed began otherwise. Equal half-way,
    # and r3 takes twice the tokens a step.
    runs += [run("r3", s, [0.5, 0.5 + more] * 2, first=s == 2, half=0.1) for s, more in enumerate((0.0, 0.2, 0.1))]
    lines = doubts(runs).splitlines()
    rows = dict(line.strip("| ").split(" | ") for line in lines[2:])
    assert rows["as registered"].startswith("+30.0 [")
    assert rows["errors pooled over all arms"] == with_t(30.0, [25.0, 35.0, 30.0])
    assert rows["seeds on one kind of processor: 0, 1"] == "+30.0"
    assert rows["without `commas`"] == with_t(10.0, [0.0, 20.0, 10.0])
    assert rows["at 50k tokens, by seed"] == "+0.0 [+0.0, +0.0]"
    assert rows["at 80k tokens, by seed"] == with_t(18.0, [15.0, 21.0, 18.0])
    assert rows["seed after seed"] == "+25.0, +35.0, +30.0"
    assert rows["signs flipped; p of 3 seeds is 0.25 or more"] == "p = 0.25"
    assert rows["after as many steps, by seed"] == with_t(45.0, [40.0, 50.0, 45.0])
    assert rows["mean over the run, by seed"] == with_t(7.5, [6.25, 8.75, 7.5])
    assert "2 seeds in common: too few" in doubts([each for each in runs if each.seed < 2])


def with_t(mean, values):
    """Write a mean with Student's interval over three seeds, as where one of two arms has no spread."""
    half = 4.30265 * np.std(values, ddof=1) / np.sqrt(3)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
