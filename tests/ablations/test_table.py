"""What is compared where, on runs whose curves are known."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ablation.figure import draw
from benchmarks.ablation.learned import Curve, Learnt, cpu_until
from benchmarks.ablation.results import as_data, places, table


def run(arm, seed, *, steps, tokens_a_step, gain):
    """A run whose pass@1 rises by `gain` a step from 0.1, evaluated at both ends and in the middle."""
    at = np.array([0, steps // 2, steps], float)
    evaluations = {"pass@1": 0.1 + gain * at, "truncated": np.array([0.5, 0.3, 0.2])}
    each = np.arange(1, steps + 1, dtype=float)
    training = {"groups/solve_none": 1 / each, "response/truncated": 1 / each, "response/mean_tokens": each}
    return Learnt(
        arm,
        seed,
        Path("nowhere"),
        "0" * 12,
        60.0,
        Curve(at, at * tokens_a_step, evaluations),
        Curve(each, each * tokens_a_step, training),
    )


@pytest.fixture
def results():
    """The second arm gains the same a step, and needs twice the tokens for it."""
    return {
        "grpo": [run("grpo", seed, steps=40, tokens_a_step=1000, gain=0.01 + 0.001 * seed) for seed in (1, 2, 3)],
        "dapo": [run("dapo", seed, steps=20, tokens_a_step=2100, gain=0.01 + 0.001 * seed) for seed in (1, 2, 3)],
    }


def test_equal_steps_are_the_shortest_runs_and_equal_tokens_the_thriftiests(results):
    by_steps, by_tokens, at_end = places(results)
    assert (by_steps.heading, by_tokens.heading) == ("at 20 steps", "at 40k tokens")
    grpo, dapo = results["grpo"][0], results["dapo"][0]
    assert by_steps.accuracy(grpo) == pytest.approx(by_steps.accuracy(dapo)) == pytest.approx(0.1 + 20 * 0.011)
    assert by_tokens.accuracy(grpo) == pytest.approx(0.1 + 40 * 0.011)
    assert by_tokens.accuracy(dapo) == pytest.approx(0.1 + 40_000 / 2100 * 0.011)
    assert at_end.accuracy(grpo) == pytest.approx(0.1 + 40 * 0.011)


def cells(text, arm):
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0] == arm]


def test_the_table_has_levels_with_intervals_and_paired_differences(results):
    text = table(results)
    ((_, seeds, before, at_steps, *_),) = cells(text, "grpo")
    # Gains of 0.011, 0.012 and 0.013 over 20 steps: mean 0.34, s = 0.02, t(2) = 4.303.
    assert (seeds, before, at_steps) == ("3", "0.100", "0.340 [0.290, 0.390]")
    levels, (_, pairs, same, fewer_tokens, _) = cells(text, "dapo")
    assert (levels[1], pairs) == ("3", "3")
    assert same.replace("-0.000", "+0.000") == "+0.000 [+0.000, +0.000] at 20 steps"
    # Seed by seed 0.011, 0.012 and 0.013 times 20.952 steps less.
    assert fewer_tokens == "**-0.251 [-0.303, -0.199]** at 40k tokens"
    assert "Difference to grpo" in text


def test_unfinished_runs_are_listed_and_the_table_is_of_the_others(results):
    text = table({"grpo": results["grpo"][:1], "r3": []}, ["r3-1: not begun"])
    ((_, seeds, _, at_steps, *_),) = cells(text, "grpo")
    assert (seeds, at_steps) == ("1", "0.540")
    assert not cells(text, "r3")
    assert "- r3-1: not begun" in text
    assert "- r3-1: not begun" in table({"r3": []}, ["r3-1: not begun"])


def test_results_hold_every_runs_curve(results):
    data = json.loads(json.dumps(as_data(results, [])["runs"], default=str))
    assert [(entry["arm"], entry["seed"]) for entry in data] == [(a, s) for a in ("grpo", "dapo") for s in (1, 2, 3)]
    assert data[0]["evaluations"]["generated_tokens"] == [0, 20_000, 40_000]
    assert data[0]["evaluations"]["pass@1"] == pytest.approx([0.1, 0.32, 0.54])


def test_a_third_arm_of_few_steps_cuts_nothing_off_the_difference_of_two(results):
    text = table({**results, "brief": [run("brief", 1, steps=2, tokens_a_step=500, gain=0)]})
    assert "at 2 steps | at 1,000 tokens" in text
    _, (_, pairs, at_steps, at_tokens, _) = cells(text, "dapo")
    assert (pairs, at_steps.endswith("at 20 steps"), at_tokens.endswith("at 40k tokens")) == ("3", True, True)


def test_results_hold_the_tables_numbers(results):
    data = as_data(results, [])
    level = data["pass@1"]["at 20 steps"]["grpo"]
    assert level == pytest.approx({"mean": 0.34, "low": 0.29032, "high": 0.38968, "seeds": 3}, abs=1e-5)
    difference = data["difference"]["dapo - grpo"]
    assert difference["at 20 steps"]["mean"] == pytest.approx(0, abs=1e-12)
    assert difference["at 40k tokens"]["mean"] == pytest.approx((40_000 / 2100 - 40) * 0.012)


def test_curves_are_drawn_with_one_seed_and_with_several(results, tmp_path):
    path = draw({**results, "r3": [run("r3", 1, steps=6, tokens_a_step=900, gain=0.02)]}, tmp_path / "curves.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == ["curves.png"]


def test_a_gap_in_a_measurement_is_bridged():
    curve = Curve.of([(1, 10, {"x": 1.0}), (2, 20, {"x": None}), (3, 40, {"x": 3.0})])
    assert curve.at("x", 20, axis="tokens") == pytest.approx(1 + 2 / 3)


def test_cpu_seconds_are_those_of_the_steps_up_to_an_evaluation():
    training = Curve.of([(step, step * 10, {"time/cpu": float(step)}) for step in range(1, 6)])
    np.testing.assert_array_equal(cpu_until(training, np.array([0, 2, 5])), [0, 3, 15])
