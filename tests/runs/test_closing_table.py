import io

import numpy as np
import pytest
from rich.console import Console

from algorithms.train.closing_table import gain_sentence, print_closing_table
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.statistics import Trend, paired_bootstrap

BEFORE = {"pass@1": 0.25, "pass@8": 0.5, "mean_tokens": 20.0, "truncated": 0.1}
AFTER = {"pass@1": 0.5, "pass@8": 0.75, "mean_tokens": 18.5, "truncated": 0.0, "pass@1_after_reflection": 0.6}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "my runs", "first", "")


def printed(run, summary, **correct):
    stream = io.StringIO()
    print_closing_table(summary, run.path, console=Console(file=stream, width=200, soft_wrap=True), **correct)
    return stream.getvalue()


def problems(shares):
    return {f"problem-{number}": float(share) for number, share in enumerate(shares)}


def test_the_table_has_before_after_and_change(run):
    rows = [
        line.replace("│", " ").split()
        for line in printed(run, {"eval": {"before": BEFORE, "after": AFTER}}).splitlines()
    ]
    assert ["pass@1", "25.0%", "50.0%", "+25.0", "points"] in rows
    assert ["pass@8", "50.0%", "75.0%", "+25.0", "points"] in rows
    assert ["pass@1", "after", "reflection", "–", "60.0%", "–"] in rows
    assert ["mean", "tokens", "20.0", "18.5", "-1.5"] in rows
    assert ["truncated", "10.0%", "0.0%", "-10.0", "points"] in rows


def test_answers_that_failed_have_a_row_where_there_are_any(run):
    sides = {"before": BEFORE | {"failed_share": 0.0}, "after": AFTER | {"failed_share": 0.25}}
    rows = [line.replace("│", " ").split() for line in printed(run, {"eval": sides}).splitlines()]
    assert ["failed,", "as", "incorrect", "0.0%", "25.0%", "+25.0", "points"] in rows
    assert "as incorrect" not in printed(run, {"eval": {"before": sides["before"], "after": AFTER}})


def test_the_share_without_an_answer_has_a_row_below_the_truncated_where_it_was_measured(run):
    sides = {"before": BEFORE | {"no_answer": 0.75}, "after": AFTER | {"no_answer": 0.25}}
    rows = [line.replace("│", " ").split() for line in printed(run, {"eval": sides}).splitlines()]
    place = rows.index(["no", "answer", "75.0%", "25.0%", "-50.0", "points"])
    assert rows[place - 1][0] == "truncated"
    assert "no answer" not in printed(run, {"eval": {"before": BEFORE, "after": AFTER}})


def test_the_files_that_exist_are_named_and_the_tensorboard_command_is_quoted(run):
    run.write_summary({})
    (run.path / "events.out.tfevents.1.machine.2.0").touch()
    text = printed(run, {})
    assert str(run.summary_file) in text
    assert str(run.curves_file) not in text
    assert f"tensorboard --logdir '{run.path.parent}'" in text


@pytest.mark.parametrize("evaluations", [None, {}, {"before": None, "after": None}])
def test_a_run_without_evaluation_claims_nothing(run, evaluations):
    text = printed(run, {"eval": evaluations})
    assert "pass@1" not in text
    assert str(run.checkpoints_folder) in text and "tensorboard" not in text


def test_one_side_alone_is_shown_without_a_change(run):
    rows = [line.replace("│", " ").split() for line in printed(run, {"eval": {"before": BEFORE}}).splitlines()]
    assert ["pass@1", "25.0%", "–", "–"] in rows


def test_without_problems_the_sentence_names_the_numbers_only():
    sentence = gain_sentence(BEFORE, AFTER, {}, {})
    assert "from 25.0% to 50.0%" in sentence
    assert "rose" not in sentence


@pytest.mark.parametrize(
    ("shift", "word"), [(0.25, "rose by 25.0 points"), (-0.25, "fell by 25.0 points"), (0.0, "within noise")]
)
def test_the_sentence_follows_the_interval(shift, word):
    noise = np.random.default_rng(0).normal(0, 0.05, size=100)
    noise -= noise.mean()
    before = np.full(100, 0.5)
    assert word in gain_sentence(BEFORE, AFTER, problems(before), problems(before + shift + noise))


def test_the_table_and_the_sentence_round_a_change_alike(run):
    before, after = 0.30625, 0.54375
    assert f"{100 * (after - before):.1f}" == "23.7" and f"{100 * 0.2375:.1f}" == "23.8"
    summary = {"eval": {"before": {"pass@1": before}, "after": {"pass@1": after}}}
    text = printed(run, summary, before=problems(np.zeros(20)), after=problems(np.full(20, 0.2375)))
    assert "+23.8 points" in text and "rose by 23.8 points" in text


def test_a_gain_on_few_of_many_problems_is_noise():
    after = np.zeros(100)
    after[0] = 1.0
    change = paired_bootstrap(problems(np.zeros(100)), problems(after))
    assert change.mean == pytest.approx(0.01)
    assert change.trend is Trend.WITHIN_NOISE


def test_the_interval_is_that_of_the_mean():
    differences = np.random.default_rng(1).normal(0.1, 0.3, size=400)
    change = paired_bootstrap(problems(np.zeros(400)), problems(differences))
    half_width = 1.96 * differences.std() / 20
    assert change.low == pytest.approx(differences.mean() - half_width, abs=0.004)
    assert change.high == pytest.approx(differences.mean() + half_width, abs=0.004)


def test_only_common_problems_count_and_too_few_give_no_claim():
    before = problems(np.zeros(12))
    assert paired_bootstrap(before, {**problems(np.ones(11)), "new": 0.0}).problems == 11
    assert paired_bootstrap(before, problems(np.ones(9))) is None
