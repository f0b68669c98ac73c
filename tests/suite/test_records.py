"""What is read of suite.jsonl, and areas that a reader can add up by hand."""

import json

import numpy as np
import pytest

from benchmarks.suite.records import area, areas, at, read

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
    for budget in (777, 1000, 2345, 4000):
        middles = (np.arange(100_000) + 0.5) * budget / 100_000
        mean = np.interp(middles, run.tokens, run.pass_at_1).mean()
        assert area(run, "tokens", budget, hold=True) == pytest.approx(mean, abs=1e-8)


def test_a_curve_is_held_behind_its_end_only_if_that_is_said(run):
    assert area(run, "tokens", 6000, hold=True) == pytest.approx((1.0 + 3 * 0.5) / 6)
    assert at(run, "tokens", 9000, hold=True) == 0.5
    for call in (lambda: area(run, "tokens", 6000), lambda: at(run, "cpu_s", 20.1)):
        with pytest.raises(ValueError, match="r3/seed-1.*ends at"):
            call()


def test_a_point_lies_between_two_measurements(run):
    assert [at(run, "tokens", x) for x in (0, 500, 1000, 2000, 3000)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert at(run, "cpu_s", 15) == pytest.approx(0.4)


def test_before_the_first_cpu_second_measured_the_model_is_the_base(file):
    late = content()
    for point in late["curve"]:
        point["cpu_s"] += 4.0
    write(file, late)
    (run,) = read(file)
    assert at(run, "cpu_s", 2.0) == 0.1
    assert area(run, "cpu_s", 14.0) == pytest.approx((4 * 0.1 + 10 * 0.2) / 14)


@pytest.mark.parametrize(("axis", "x"), [("steps", 1), ("tokens", -1), ("tokens", float("nan"))])
def test_a_point_off_the_curve_is_refused(run, axis, x):
    with pytest.raises(ValueError, match="no axis|not within"):
        at(run, axis, x, hold=True)


def test_a_budget_is_positive(run):
    with pytest.raises(ValueError, match="not positive"):
        area(run, "tokens", 0)


def test_without_a_budget_the_shortest_run_of_the_same_exercise_sets_it(file):
    short = content(arm="grpo", curve=content()["curve"][:2])
    write(file, content(), short, content(task="other"))
    assert areas(read(file), "tokens") == pytest.approx([0.2, 0.2, 1 / 3])
    assert areas(read(file), "tokens", 500) == pytest.approx([0.15] * 3)
    with pytest.raises(ValueError, match="grpo/seed-1"):
        areas(read(file), "tokens", 3000)


def test_a_line_that_a_kill_cut_off_is_left_out(file):
    write(file, content(), content(seed=2))
    whole = file.read_bytes()
    for cut in (1, 2, 40, 300):
        file.write_bytes(whole[:-cut])
        assert [run.seed for run in read(file)] == ([1, 2] if cut == 1 else [1])
    file.write_bytes(whole + b'{"task": "\xc3')
    assert [run.seed for run in read(file)] == [1, 2]


def test_an_empty_file_has_no_runs(file):
    file.write_bytes(b"")
    assert read(file) == []


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(file):
    file.write_text(f'{{"phase": "te\n{json.dumps(content())}\n')
    with pytest.raises(ValueError, match="suite.jsonl:1: no JSON"):
        read(file)


def test_a_repeated_line_counts_once_and_a_different_one_is_an_error(file):
    write(file, content(), content(seed=2), content())
    assert [run.seed for run in read(file)] == [1, 2]
    write(file, content(), content(wall_s=61.0))
    with pytest.raises(ValueError, match=r"suite.jsonl:2: test/sorting/easy/none/base-0/r3/seed-1/lr-0.0001 is there"):
        read(file)


@pytest.mark.parametrize("field", ["phase", "task", "difficulty", "skill", "base", "arm", "seed", "lr"])
def test_runs_that_differ_in_their_key_are_two(file, field):
    other = {"phase": "sweep", "difficulty": "blind", "skill": "own_failures", "task": "x", "arm": "x", "lr": 2e-4}
    write(file, content(), content(**{field: other.get(field, 7)}))
    assert len(read(file)) == 2


def test_replicates_of_two_skills_are_two_bases_of_a_stratum(file):
    write(file, content(), content(skill="own_failures"), content(arm="grpo"))
    first, skilled, other = read(file)
    assert first.stratum == skilled.stratum and first.cluster != skilled.cluster and first.cell != skilled.cell
    assert first.cluster == other.cluster


def without(field):
    return {key: value for key, value in content().items() if key != field}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (without("seed"), "KeyError: 'seed'"),
        (without("protocol"), "KeyError: 'protocol'"),
        (content(difficulty="hard"), "difficulty is 'hard'"),
        (content(curve=[]), "empty"),
        (content(curve=content()["curve"][1:]), "not before training"),
        (content(curve=content()["curve"][::-1]), "falling"),
        (content(curve=[{**content()["curve"][0], "pass@1": 1.5}]), "not from 0 to 1"),
        (content(curve=[{**content()["curve"][0], "pass@1": None}]), "not from 0 to 1"),
        (content(final={"pass@1": 0.5}), "KeyError: 'pass@8'"),
        ([], "TypeError"),
    ],
)
def test_what_is_no_run_is_an_error_that_names_the_line(file, line, what):
    write(file, content(), line)
    with pytest.raises(ValueError, match="suite.jsonl:2: no run") as error:
        read(file)
    assert what in str(error.value)
