"""A gradient that is not finite: skipped and counted, and after too many in a row the run ends with its batch kept."""

import numpy as np
import pytest
import torch

from algorithms.grpo.monitors import FILE, SkippedSteps, TooManySkippedSteps
from algorithms.learner.batch import TrainingSample

from .runs_of import train, weights


def row(tokens, advantage):
    mask = np.arange(len(tokens)) > 0
    return TrainingSample(np.array(tokens, np.int32), mask, advantage, 0.5, np.full(mask.sum(), -1.0, np.float32))


ROWS = [row([1, 2, 3], 1.0), row([4, 5], -1.0)]


def test_only_steps_in_a_row_count():
    skipped = SkippedSteps(2)
    for outcome in (True, True, False, True, True):
        skipped.observe(outcome, ROWS)
    with pytest.raises(TooManySkippedSteps, match=r"3 optimizer steps in a row \(training.max_skipped_steps\)"):
        skipped.observe(True, ROWS)


def test_zero_puts_up_with_any_number():
    skipped = SkippedSteps(0)
    for _ in range(100):
        skipped.observe(True, ROWS)


def test_a_disk_that_is_full_does_not_hide_what_went_wrong(tmp_path):
    skipped = SkippedSteps(1, tmp_path / "gone")
    skipped.observe(True, ROWS)
    with pytest.raises(TooManySkippedSteps, match=r"2 optimizer steps in a row.*could not be written"):
        skipped.observe(True, ROWS)


def test_the_offending_batch_can_be_read(tmp_path):
    skipped = SkippedSteps(1, tmp_path)
    skipped.observe(True, ROWS)
    with pytest.raises(TooManySkippedSteps, match=FILE):
        skipped.observe(True, ROWS)
    with np.load(tmp_path / FILE, allow_pickle=False) as kept:
        assert kept["lengths"].tolist() == [3, 2]
        assert kept["tokens"].tolist() == [1, 2, 3, 4, 5]
        assert kept["advantages"].tolist() == [1.0, 1.0, -1.0]  # one for each token of the policy
        assert len(kept["old_logprobs"]) == 3


def test_a_policy_that_overflows_is_not_stepped_and_stops_the_run(grpo_config, build, tmp_path):
    algorithm = build(grpo_config.training(max_skipped_steps=1, minibatches=2))
    algorithm.keep_state_in(tmp_path)
    algorithm.learner_group.foreach_learner(_poison)
    before = weights(algorithm)
    with pytest.raises(TooManySkippedSteps):
        train(algorithm, 1)
    assert (tmp_path / FILE).is_file()
    after = weights(algorithm)
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def test_further_passes_over_a_batch_count_no_skipped_steps(grpo_config, build):
    algorithm = build(grpo_config.training(max_skipped_steps=1, minibatches=1, passes=3))
    algorithm.learner_group.foreach_learner(_poison_gradients)
    (record,) = train(algorithm, 1)
    assert record["policy/skipped_steps"] == 3 and algorithm.skipped_steps.in_a_row == 1
    with pytest.raises(TooManySkippedSteps, match="2 optimizer steps in a row"):
        train(algorithm, 1)


def test_log_probs_that_are_not_numbers_are_not_stored(r3_config, build):
    algorithm = build(r3_config.training(max_skipped_steps=0, minibatches=2))
    algorithm.learner_group.foreach_learner(_poison)
    (record,) = train(algorithm, 1)
    assert record["policy/skipped_steps"] == 2
    assert len(algorithm.history) == 0


def _poison(learner):
    with torch.no_grad():
        next(learner.lm.parameters()).fill_(float("nan"))


def _poison_gradients(learner):
    """Leave the weights whole: the next step still has answers to learn from."""
    next(learner.lm.parameters()).register_hook(lambda gradient: gradient * float("nan"))
