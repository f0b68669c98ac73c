"""What R³ costs beside GRPO: the ratios are of seconds per generated token, and more work is told from machinery."""

import pytest

from benchmarks.overhead import NAMES, Sides
from benchmarks.sides.arithmetic import Arithmetic, Shapes
from benchmarks.sides.steps import Step


def step(tokens, collecting, updating, trained, rest=0.0):
    seconds = collecting + updating + rest
    details = {"wall/collect_rollouts": collecting, "wall/update_policy": updating, "trained_tokens": trained}
    return Step(seconds, collecting, 0.0, 8, tokens, 0.0, cpu_s=2 * seconds, details=details)


def test_the_ratio_is_of_seconds_per_generated_token():
    sides = Sides({NAMES[0]: [step(200, 1, 1, 100), step(200, 1, 1, 100)], NAMES[1]: [step(100, 1, 1, 100)] * 2})
    assert sides.ratio("seconds") == sides.ratio("cpu_s") == pytest.approx(0.5)
    low, high = sides.spread("seconds")
    assert low == high == pytest.approx(0.5)


def test_training_on_more_tokens_is_no_overhead_and_a_scoring_pass_is():
    grpo = step(100, 1.0, 1.0, 50)
    busier = Sides({NAMES[0]: [step(100, 1.0, 2.0, 100)], NAMES[1]: [grpo]})
    assert busier.ratio("seconds") == pytest.approx(1.5)
    assert busier.at_equal_work("wall", "seconds") == pytest.approx(1.0)
    slower = Sides({NAMES[0]: [step(100, 1.0, 2.0, 100, rest=0.5)], NAMES[1]: [grpo]})
    assert slower.at_equal_work("wall", "seconds") == pytest.approx(1.25)


def test_the_arithmetic_counts_each_product_as_often_as_the_step_needs_it():
    arithmetic = Arithmetic(Shapes(((8, 4), (4, 8)), (100, 4)), token_budget=64)
    arithmetic.product = lambda rows, outputs, inputs, trains: rows * outputs * inputs * (3 if trains else 1)
    # Two steps of up to 16 rows, two of up to 32.
    assert arithmetic.decoding_s([2] * 17 + [4] * 3) == (2 * 32 + 2 * 16) * (64 + 400)
    assert arithmetic.update_s(tokens=128, response_tokens=96) == 3 * (128 * 64 + 96 * 400)
