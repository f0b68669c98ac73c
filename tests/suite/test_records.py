"""What is read of suite.jsonl, and areas that a reader can add up by hand."""

import json

import numpy as np
import pytest

from benchmarks.suite.records import area, areas, read, read_test

from .simulated import content


@pytest.fixture
def file(tmp_path):
    return tmp_path / "suite.jsonl"


def write(file, *contents, end="\n"):
    file.write_text("\n".join(json.dumps(line) for line in contents) + end)


@pytest.fixture
def run(file):
    write(file, content())
    return read(file)[0]


def test_a_run_is_read_whole(run):
    assert (run.phase, run.task, run.difficulty, run.skill) == ("test", "sorting", "easy", "none")
    assert (run.base, run.arm, run.seed, run.lr, run.wall_s) == (0, "r3", 1, 1e-4, 60.0)
    assert run.steps.tolist() == [0, 5, 10] and run.tokens.tolist() == [0, 1000, 3000]
    assert run.cpu_s.tolist() == [0, 10, 20] and run.pass_at_1.tolist() == [0.1, 0.3, 0.5]
    assert run.final == {"pass@1": 0.5, "pass@8": 0.75, "entropy": 0.5, "truncated": 0.125}
    assert (run.protocol, run.commit) == ("0" * 64, "1" * 40)


def test_the_area_is_that_of_trapezoids(run):
    # 1000 tokens at a mean of 0.2, then 2000 at one of 0.4.
    assert area(run, "tokens", 3000) == pytest.approx((0.2 + 2 * 0.4) / 3)
    # The line from 0.3 to 0.5 is at 0.4 where the budget ends.
    assert area(run, "tokens", 2000) == pytest.approx((0.2 + 0.35) / 2)
    assert area(run, "tokens", 500) == pytest.approx(0.15)
    assert area(run, "cpu_s", 15) == pytest.approx((10 * 0.2 + 5 * 0.35) / 15)


def test_the_area_is_the_mean_along_a_fine_grid(run):
    for budget in (777, 1000, 2345):
        middles = (np.arange(100_000) + 0.5) * budget / 100_000
        mean = np.interp(middles, run.tokens, run.pass_at_1).mean()
        assert area(run, "tokens", budget) == pytest.approx(mean, abs=1e-8)


def test_before_the_first_cpu_second_measured_the_model_is_the_base(file):
    late = content()
    for point in late["curve"]:
        point["cpu_s"] += 4.0
    write(file, late)
    (run,) = read(file)
    assert area(run, "cpu_s", 14.0) == pytest.approx((4 * 0.1 + 10 * 0.2) / 14)


def test_without_a_budget_the_shortest_run_of_the_same_exercise_sets_it(file):
    short = content(arm="grpo", curve=content()["curve"][:2])
    write(file, content(), short, content(task="other"))
    assert areas(read(file), "tokens") == pytest.approx([0.2, 0.2, 1 / 3])
    assert areas(read(file), "tokens", 500) == pytest.approx([0.15] * 3)
    with pytest.raises(ValueError, match="grpo/seed-1"):
        areas(read(file), "tokens", 3000)


def test_runs_of_the_sweep_are_not_of_the_test(file):
    write(file, content(seed=2), content(phase="sweep"), content(seed=1))
    assert [run.seed for run in read_test(file)] == [1, 2]


def test_replicates_of_two_skills_are_two_bases_of_a_stratum(file):
    write(file, content(), content(skill="own_failures"), content(arm="grpo"))
    first, skilled, other = read(file)
    assert first.stratum == skilled.stratum and first.cluster != skilled.cluster and first.cell != skilled.cell
    assert first.cluster == other.cluster
