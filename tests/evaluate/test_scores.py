"""Scores against a table worked out by hand."""

from dataclasses import replace

import pytest

from algorithms.evaluation.benchmarks import sample_parts
from algorithms.evaluation.comparison import compare, list_uncompared
from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.results import bearing_on_answers, differences
from algorithms.rollout.types import Sampling
from algorithms.utils.statistics import score


def responses(uid, outcomes, *, benchmark="b", level=None):
    """Responses to one problem from (answer, correct, tokens) triples; those of 10 tokens were cut off."""
    return [
        Response(benchmark, uid, level, n, "p", "r", answer, correct, tokens >= 10, "equal", tokens)
        for n, (answer, correct, tokens) in enumerate(outcomes)
    ]


TWO_PROBLEMS = [
    # Three of four right; the majority is right.
    *responses("one", [("7", True, 4), ("7", True, 6), ("8", False, 10), ("7", True, 8)], level="2"),
    # One of four right; the two wrong ones agree with each other, and one says nothing.
    *responses("two", [("1", True, 2), ("3", False, 4), (" 3 ", False, 4), (None, False, 10)], level="10"),
]


def test_scores_are_the_hand_computed_ones():
    (one,) = benchmark_scores(TWO_PROBLEMS, ks=[1, 2, 4], limits=[5]).values()
    means = {name: value.mean for name, value in one["scores"].items()}
    assert means == pytest.approx(
        {
            "pass@1": (3 / 4 + 1 / 4) / 2,
            "pass@2": (1 + (1 - 3 / 6)) / 2,  # of 6 pairs none, and 3, have no right one
            "pass@4": 1.0,
            "maj@4": (1 + 0) / 2,
            "mean_tokens": (28 / 4 + 20 / 4) / 2,
            "truncated": (1 / 4 + 1 / 4) / 2,
            "no_answer": 0.0,
            "pass@1_within_5": (1 / 4 + 1 / 4) / 2,
            "pass@2_within_5": (1 - 3 / 6 + 1 - 3 / 6) / 2,
            "pass@4_within_5": 1.0,
        }
    )
    assert (one["problems"], one["samples"], one["ungraded"]) == (2, 4, 0)
    assert {level: value.mean for level, value in one["levels"].items()} == {"2": 0.75, "10": 0.25}
    assert list(one["levels"]) == ["2", "10"], "levels that are numbers are in their order"


def test_pass_at_1_is_told_whatever_k_is_asked_for():
    (one,) = benchmark_scores(TWO_PROBLEMS, ks=[4]).values()
    assert one["scores"]["pass@1"].mean == 0.5 and one["levels"]["2"].mean == 0.75


@pytest.mark.parametrize(
    ("right", "verdict", "told"),
    [(True, "equal", False), (False, "different", False), (False, "truncated", True), (False, "no_answer", True)],
)
def test_no_majority_is_told_where_judged_answers_are_not_known(right, verdict, told):
    """An environment that judges a response as a whole: no answer is read from it, nor from an episode cut off."""
    untold = Response("b", "two", None, 4, "p", "<answer>5</answer>", None, right, False, verdict, 4)
    (one,) = benchmark_scores([*TWO_PROBLEMS[:-1], untold], ks=[1]).values()
    assert any(name.startswith("maj@") for name in one["scores"]) is told


def test_no_majority_is_told_where_all_that_could_be_judged_was_cut_off():
    cut = [Response("b", "two", None, n, "p", "5", None, False, True, "truncated", 4) for n in range(4)]
    (one,) = benchmark_scores(cut, ks=[1]).values()
    assert not any(name.startswith("maj@") for name in one["scores"])


def test_benchmarks_do_not_mix():
    other = responses("one", [("1", False, 3)] * 2, benchmark="other")
    scores = benchmark_scores([*TWO_PROBLEMS, *other], ks=[1])
    assert scores["b"]["scores"]["pass@1"].mean == 0.5
    assert scores["other"]["scores"]["pass@1"].mean == 0.0


def test_intervals_hold_the_mean_shrink_with_problems_and_are_left_out_below_ten():
    few, many = score([0.0, 1.0] * 5), score([0.0, 1.0] * 500)
    assert few.low < few.mean == 0.5 < few.high
    assert many.high - many.low < (few.high - few.low) / 5
    assert score([1.0] * 9).low is None


def test_none_solved_and_all_solved_are_not_certain():
    none, every = score([0.0] * 10), score([1.0] * 10)
    assert (none.mean, none.low) == (0.0, 0.0) and none.high == pytest.approx(0.2775, abs=1e-4)  # Wilson's, 0 of 10
    assert (every.mean, every.high) == (1.0, 1.0) and every.low == pytest.approx(1 - none.high)
    assert score([1.0] * 10, share=False).low == 1.0, "one token each is one token"


def test_what_only_one_side_measured_is_listed():
    first = {"b": {"scores": {"pass@1": 0, "pass@16": 0}}, "c": {}}
    second = {"b": {"scores": {"pass@1": 0, "pass@1_within_5": 0}}}
    assert list_uncompared(first, second) == ["c", "b pass@16", "b pass@1 within 5"]


def test_settings_that_differ_are_found_in_mappings_too():
    first = {"run": {"seed": 0}, "benchmarks": {"data": {"a": "x", "b": "y"}}}
    second = {"run": {"seed": 0}, "benchmarks": {"data": {"a": "z"}, "limits": [4]}}
    assert differences(first, second) == {
        "benchmarks.data.a": "'x' → 'z'",
        "benchmarks.data.b": "'y' → not set",
        "benchmarks.limits": "not set → [4]",
    }


def test_settings_without_bearing_on_the_answers_are_told_apart():
    names = [
        "run.seed",
        "run.steps",
        "training.lr",
        "learners.num_learners",
        "reward.length_bonus",
        "env_runners.timeout_s",
    ]
    names += ["env_runners.max_num_seqs", "env_runners.temperature", "evaluation.k", "evaluation.samples"]
    first, second = _settings(names, 1), _settings(names, 2)
    assert list(bearing_on_answers(first, second)) == ["run.seed", "env_runners.temperature", "evaluation.samples"]


def test_a_setting_of_another_version_counts_as_its_section_does():
    first = {"training": {"older": 1}, "env_runners": {"older": 1}, "elsewhere": {"older": 1}}
    assert list(bearing_on_answers(first, {})) == ["env_runners.older", "elsewhere.older"]


def test_sampling_of_training_has_no_bearing_where_both_evaluations_have_their_own():
    names = ["env_runners.temperature", "env_runners.stop"]
    own = {"evaluation": {"temperature": 0.6, "stop": None}}
    first, second = {**_settings(names, 1), **own}, {**_settings(names, 2), **own}
    assert list(bearing_on_answers(first, second)) == ["env_runners.stop"]
    without = {**second, "evaluation": {"temperature": None}}
    assert list(bearing_on_answers(first, without)) == [*names, "evaluation.temperature", "evaluation.stop"]


def _settings(names, value):
    settings = {}
    for section, key in (name.split(".") for name in names):
        settings.setdefault(section, {})[key] = value
    return settings


def test_beside_second_tries_stands_what_an_independent_second_answer_would_have_given():
    """Right at first or then is never below pass@1, whatever a second try does."""
    tried = [replace(one, reflected_correct=one.correct) for one in TWO_PROBLEMS]
    (one,) = benchmark_scores(tried, ks=[1]).values()
    assert one["scores"]["pass@2"].mean == (1 + (1 - 3 / 6)) / 2
    assert "pass@2" not in next(iter(benchmark_scores(TWO_PROBLEMS, ks=[1]).values()))["scores"]
    (single,) = benchmark_scores([replace(tried[0], sample=0)], ks=[1]).values()
    assert "pass@2" not in single["scores"]


def test_the_rate_counts_no_answers_that_were_there(tmp_path):
    told = []
    folder = ResponseFolder(tmp_path)
    folder.write(0, TWO_PROBLEMS)
    sample_parts(
        lambda requests, on_progress: [],
        None,
        [["b/one"]],
        folder,
        samples=4,
        sampling=Sampling(1.0, 1.0, 4),
        truncator=None,
        seed="0",
        on_progress=lambda *counts: told.append(counts),
    )
    assert not told


def test_a_comparison_is_paired():
    def one(values):
        return {"b": {"by_problem": {str(n): {"pass@1": value} for n, value in enumerate(values)}}}

    first = [0.0, 0.2, 0.4, 0.6, 0.8] * 4
    better = compare(one(first), one([value + 0.1 for value in first]))["b"]["pass@1"]
    assert better.mean == pytest.approx(0.1) and better.low == pytest.approx(0.1)
    assert compare(one(first[:5]), one(first[:5])) == {}


def test_responses_survive_their_file_and_a_damaged_one_is_named(tmp_path):
    folder = ResponseFolder(tmp_path)
    folder.write(0, TWO_PROBLEMS[:4])
    folder.write(1, TWO_PROBLEMS[4:])
    assert folder.read() == TWO_PROBLEMS
    (tmp_path / "part-000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="part-000001"):
        folder.read()
