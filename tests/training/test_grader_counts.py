"""The graders' counts belong to the step, whatever the process graded before."""

import pytest

from algorithms.rollout.metrics import GradingCounts
from r3env import grading

from .runs_of import train

pytestmark = pytest.mark.slow


def test_what_was_graded_before_the_run_is_not_the_runs(grpo_config, build):
    algorithm = build(grpo_config)
    grading.grade("no box", "1")
    grading.grade(r"\boxed{9^{9^9}}", "1")
    assert grading.statistics()["screened"] > 0
    later = build(grpo_config.copy())
    (record,) = train(later, 1)
    assert record["grading/screened"] == 0
    train(algorithm, 1)
    assert algorithm.batch.record["grading/screened"] > 0  # this one was there


def test_counts_of_all_processes_add_up_and_a_new_process_begins_at_zero():
    counts = GradingCounts()
    assert not +counts.added({1: {"unread": 5}, 2: {"unread": 1}})
    assert counts.added({1: {"unread": 7}, 2: {"unread": 1}})["unread"] == 2
    assert counts.added({2: {"unread": 2}})["unread"] == 1  # the first one was silent
    assert counts.added({1: {"unread": 3}, 2: {"unread": 2}})["unread"] == 3  # and has been replaced


def test_an_evaluation_is_no_part_of_the_next_steps_times(grpo_config, build):
    algorithm = build(grpo_config.evaluation(samples=8, limit=40))
    algorithm.evaluate()
    algorithm.train()
    record = algorithm.batch.record
    assert record["time/generate"] + record["time/grade"] <= record["time/collect_rollouts"] * 1.01
