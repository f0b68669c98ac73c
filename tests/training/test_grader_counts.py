"""The graders' counts belong to the step, whatever the process graded before."""

from r3env.grading import grade

from .runs_of import train


def test_what_was_graded_before_the_run_is_not_the_runs(grpo_config, build):
    algorithm = build(grpo_config)
    grade("no box", "1")
    grade(r"\boxed{9^{9^9}}", "1")
    screened_before = algorithm.runners._grading_totals()["screened"]
    assert screened_before > 0
    later = build(grpo_config.copy())
    (record,) = train(later, 1)
    assert record["grading/screened"] == 0
