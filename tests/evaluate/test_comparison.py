"""What a comparison of two evaluations tells."""

import json

import pytest
import yaml

from algorithms.evaluate import main
from algorithms.evaluation.comparison import Common, changed_problems, compare, count_common, mean_changes
from algorithms.evaluation.console import comparison_table, comparison_tables, score_table
from algorithms.utils.statistics import Change, Score, mean_score, score


def test_differences_of_shares_are_points():
    change = Change(0.031, -0.01, 0.05, 12)
    (table,) = comparison_tables({"b": {"pass@1": change}}, {"b": Common(12, 30, 40)}, "a", "b")
    assert str(table.title) == "b: b minus a, 12 of a's 30 and b's 40 problems"
    assert list(table.columns[1].cells) == ["+3.1 points"]


def test_what_is_the_same_on_every_problem_has_no_interval():
    changes = {"pass@1": Change(0.0, 0.0, 0.0, 12), "pass@2": Change(0.0, -0.1, 0.1, 12)}
    table = comparison_table("t", changes)
    assert [list(column.cells)[0] for column in table.columns] == [
        "pass@1",
        "+0.0 points",
        "",
        "the same on every problem",
    ]
    assert list(table.columns[2].cells)[1] == "-10.0 points to +10.0 points"


def one(**benchmarks):
    """What scores.json holds, from pass@1 of each problem."""
    return {
        name: {
            "problems": len(values),
            "samples": 1,
            "ungraded": 0,
            "scores": {"pass@1": {"mean": 0.5, "low": None, "high": None}},
            "levels": {},
            "by_problem": {str(n): {"pass@1": value} for n, value in enumerate(values)},
        }
        for name, values in benchmarks.items()
    }


FIRST = one(a=[0.0, 1.0] * 10, b=[0.0, 1.0] * 50, c=[1.0] * 9)
SECOND = one(a=[1.0, 1.0] * 10, b=[0.0, 1.0] * 40, c=[1.0] * 30)


def test_the_mean_over_benchmarks_weighs_each_the_same_and_resamples_within_each():
    changes = compare(FIRST, SECOND)
    mean = mean_changes(FIRST, SECOND, changes)["pass@1"]
    assert mean.mean == pytest.approx((0.5 + 0.0) / 2) and mean.problems == 100
    own = changes["a"]["pass@1"]
    assert mean.low == pytest.approx(own.low / 2, abs=0.03) and mean.high == pytest.approx(own.high / 2, abs=0.03)
    assert mean_changes(FIRST, SECOND, {"a": changes["a"]}) == {}


def test_the_mean_of_scores_has_an_interval():
    a, b = [0.0, 1.0] * 10, [0.0, 1.0] * 500
    mean, few = mean_score([a, b]), score(a)
    assert mean.mean == 0.5 and mean.high - mean.low == pytest.approx((few.high - few.low) / 2, abs=0.05)
    assert mean_score([a, [1.0] * 9]).low is None
    certain = mean_score([[0.0] * 10, [1.0] * 10])
    assert certain.low < certain.mean == 0.5 < certain.high
    table = score_table({name: {**FIRST[name], "scores": {"pass@1": Score(0.5, 0.4, 0.6)}} for name in ("a", "b")})
    (cell,) = table.columns[-1].cells
    assert cell.startswith("50.0%  [3"), cell


def test_what_both_have_is_counted():
    assert count_common(FIRST, SECOND)["b"] == Common(80, 100, 80)
    assert [name for name, shared in count_common(FIRST, SECOND).items() if shared.too_few] == ["c"]


def test_other_problems_under_the_same_ids_are_found():
    same, other = {"a": {"digest": "x"}, "b": {"digest": "x"}}, {"a": {"digest": "y"}, "b": {"digest": "y"}}
    assert changed_problems(FIRST, SECOND, same, other) == ["a"], "of b the one has more"
    assert changed_problems(FIRST, SECOND, same, same) == changed_problems(FIRST, SECOND, {}, other) == []


def test_all_of_it_is_told(tmp_path, capsys):
    for name, scores, digest, lr in (("x", FIRST, "1", 1.0), ("y", SECOND, "2", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.json").write_text(json.dumps(scores))
        (tmp_path / name / "asked.json").write_text(json.dumps({"benchmarks": {"a": {"digest": digest}}}))
        settings = {"training": {"lr": lr}, "env_runners": {"temperature": lr}}
        (tmp_path / name / "evaluation.yaml").write_text(yaml.safe_dump(settings))
    assert main(["--compare", str(tmp_path / "x"), str(tmp_path / "y")]) == 0
    told = capsys.readouterr().out
    assert "b: y minus x, 80 of x's 100 and y's 80 problems" in told
    assert "the same on every problem" in told and "mean of 2 benchmarks: y minus x" in told
    assert "fewer than ten problems are in both: c (9)" in told
    assert "the same ids name different problems (text, answer or level): a\n" in told
    assert "env_runners.temperature 1.0 → 2.0" in told and "training.lr" not in told
