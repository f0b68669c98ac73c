"""The report on suites whose truth is known."""

import json

import pytest

from benchmarks.suite.records import read, read_test
from benchmarks.suite.table import compare_runs, rates, report

from .simulated import content, suite

GAINS = {"grpo": 0.0, "dapo": 0.2, "ngrpo": 0.1, "r3": 0.1}


@pytest.fixture
def runs_of(tmp_path):
    def made(lines):
        file = tmp_path / "suite.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return read_test(file)

    return made


def tables(text):
    """Every table of the page, as its rows by their first cells."""
    blocks = [block for block in text.split("\n\n") if block.startswith("| ")]
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]] for block in blocks]
    return [{row[0]: row[1:] for row in table if row} for table in rows]


def page(runs, **settings):
    return report(runs, **{"tokens": 10_000, "draws": 400, **settings})


def test_the_verdicts_are_the_truth(runs_of):
    text = page(runs_of(suite(GAINS)))
    for over, share in (("tokens", tables(text)[0]), ("cpu_s", tables(text)[1])):
        assert share["r3"][-1] == "–", over
        assert share["grpo"][-1] == "ahead"
        assert share["dapo"][-1] == "behind"
        assert share["ngrpo"][-1] == "equivalent within 0.02"


def test_differences_are_the_reference_minus_the_arm(runs_of):
    by_tokens = tables(page(runs_of(suite(GAINS, noise=0.0, between=0.0))))[0]
    # The gain is reached along a straight line: half of it is its area.
    assert by_tokens["grpo"][2] == "+0.050 [+0.050, +0.050]"
    assert by_tokens["dapo"][2] == "-0.050 [-0.050, -0.050]"
    assert by_tokens["grpo"][4] == "1.000"  # no draw varies it
    assert by_tokens["ngrpo"][2:5] == ["+0.000 [+0.000, +0.000]", "1.000", "0.500"]
    assert [row[0] for row in by_tokens.values()] == ["48"] * 4


def test_arms_that_differ_by_less_than_the_noise_are_not_told_apart(runs_of):
    found = tables(page(runs_of(suite({"grpo": 0.0, "r3": 0.01}, tasks=4, bases=2, noise=0.15))))
    assert found[0]["grpo"][-1] == "indistinguishable"


def test_a_difference_beyond_doubt_may_still_be_smaller_than_the_margin(runs_of):
    found = tables(page(runs_of(suite({"grpo": 0.0, "r3": 0.02}, noise=0.002))))
    assert found[0]["grpo"][-1] == "ahead, by less than 0.02"


def test_identical_arms_are_rarely_called_different(runs_of):
    wrong = 0
    for seed in range(8):
        runs = runs_of(suite({"grpo": 0.0, "dapo": 0.0, "r3": 0.0}, bases=2, noise=0.08, seed=seed))
        found = compare_runs(runs, [run.pass_at_1[-1] for run in runs], draws=300, seed=seed)
        wrong += any(difference.verdict in ("ahead", "behind") for difference in found.differences.values())
    assert wrong <= 1


def test_the_reference_is_what_is_asked_for(runs_of):
    text = page(runs_of(suite(GAINS)), reference="dapo")
    assert "dapo minus arm [95 %]" in text
    assert {row[-1] for arm, row in tables(text)[0].items() if arm != "dapo"} == {"ahead"}


def test_the_best_rate_of_the_sweep_comes_first(tmp_path):
    file = tmp_path / "suite.jsonl"
    ends = ((1e-4, 0.1), (2e-4, 0.3), (1e-4, 0.3))
    lines = [content(phase="sweep", lr=lr, final={"pass@1": value}) for lr, value in ends]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rates(read(file)) == "r3: 0.0002 0.300 (1), 0.0001 0.200 (2)"


def test_the_order_of_the_file_changes_nothing(runs_of):
    lines = suite(GAINS, tasks=3)
    assert page(runs_of(lines)) == page(runs_of(lines[::-1]))


def test_every_task_and_every_end_are_there(runs_of):
    *_, every, ends, _ = tables(page(runs_of(suite({"grpo": 0.0, "r3": 0.1}, noise=0.0, between=0.0))))
    # By first cell, of two difficulties the later: 0.05 before, 0.05 + 0.2 + 0.02 * 7 after.
    assert every["task-7"] == ["medium", "none", "6", "0.050", "0.490", "0.390"]
    assert len(every) == 8
    # The mean over tasks of 0.2 + 0.02 * task, from 0.3 and from 0.05.
    assert ends["grpo"] == ["48", "0.445", "0.667", "0.500", "0.100", "10,000", "20"]
    assert ends["r3"][1] == "0.545"


def test_two_skills_are_two_rows_and_their_runs_no_pairs(runs_of):
    lines = suite({"grpo": 0.0, "r3": 0.1}, tasks=2, noise=0.0)
    skilled = [{**line, "skill": "own_failures"} for line in suite({"grpo": 0.3, "r3": 0.4}, tasks=2, noise=0.0)]
    text = page(runs_of(lines + skilled))
    assert "| task-0 | medium | own_failures | 6 |" in text
    assert "| task-0 | medium | none | 6 |" in text
    assert tables(text)[0]["grpo"][-1] == "ahead"


def test_a_skill_may_have_a_single_base_beside_two_of_the_other(runs_of):
    lines = suite({"grpo": 0.0, "r3": 0.1}, bases=1)
    skilled = [{**line, "skill": "own_failures"} for line in suite({"grpo": 0.3, "r3": 0.4}, bases=2, seed=1)]
    by_tokens = tables(page(runs_of(lines + skilled)))[0]
    assert by_tokens["grpo"][-1] == "ahead"
    assert "nan" not in str(by_tokens)
    with pytest.raises(ValueError, match="single base"):
        page(runs_of(lines))


def test_a_budget_behind_the_end_is_refused(runs_of):
    runs = runs_of(suite(GAINS, tasks=2))
    assert "from the start to 5,000 generated tokens" in page(runs, tokens=5000)
    with pytest.raises(ValueError, match="ends at 10000"):
        page(runs, tokens=20_000)


def test_parts_are_paired_differences_over_the_bases_of_a_difficulty_and_a_skill(runs_of):
    lines = suite(GAINS, noise=0.0, between=0.0, tasks=2)
    over_tokens, over_seconds = tables(page(runs_of(lines + [{**line, "skill": "own_failures"} for line in lines])))[
        2:4
    ]
    assert over_tokens.keys() == over_seconds.keys()
    assert {part: row[0] for part, row in over_tokens.items()} == {
        "all": "12",
        "none": "6",
        "own_failures": "6",
        "easy": "12",
        "easy, none": "6",
        "easy, own_failures": "6",
        "medium": "12",
        "medium, none": "6",
        "medium, own_failures": "6",
    }, "a base counts once, at one difficulty and at two"
    for _, dapo, grpo, ngrpo in over_tokens.values():
        assert (dapo, grpo) == ("-0.050 [-0.050, -0.050]", "+0.050 [+0.050, +0.050]")
        assert ngrpo == "+0.000 [+0.000, +0.000]"
