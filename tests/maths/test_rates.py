import pytest

from algorithms.grpo.metrics import learner_rates, time_split
from algorithms.learner.flops import LearnerFacts, ModelShape
from algorithms.learner.update import UpdateStatistics
from algorithms.rollout.metrics import rollout_times

MODEL = ModelShape(weights=1.0, head=1.0, layers=())
CPU = LearnerFacts(MODEL, None, "float32", reference=False)
H100 = LearnerFacts(MODEL, "NVIDIA H100 80GB HBM3", "bfloat16", reference=False)


def update(**numbers):
    return UpdateStatistics(**numbers)


def test_rates_are_over_all_optimizer_steps_and_learners():
    steps = [
        update(passed_tokens=300.0, slots=400.0, seconds=1.0, flops=989e12).merge(
            update(passed_tokens=100.0, slots=100.0, seconds=2.0)
        ),
        update(passed_tokens=200.0, slots=300.0, seconds=3.0, flops=989e12),
    ]
    rates = learner_rates(steps, H100, 2, None)
    assert rates == {
        "throughput/learner_tokens_per_s": 120.0,  # two learners work at the same time: 2 s and 3 s
        "throughput/padding_share": pytest.approx(0.25),
        "throughput/mfu": pytest.approx(0.2),
    }


def test_without_a_known_peak_there_is_no_mfu_but_a_peak_can_be_given():
    steps = [update(passed_tokens=1.0, slots=1.0, seconds=1.0, flops=3e9)]
    assert "throughput/mfu" not in learner_rates(steps, CPU, 1, None)
    assert learner_rates(steps, CPU, 1, 0.01)["throughput/mfu"] == pytest.approx(0.3)


def test_no_step_has_no_rates():
    assert learner_rates([], CPU, 1, None) == learner_rates([update()], CPU, 1, None) == {}


def test_a_runners_mean_is_generation_and_the_rest_is_grading():
    assert rollout_times(wall_s=10.0, engine_s=24.0, runner_s=40.0) == {"time/generate": 6.0, "time/grade": 4.0}
    assert rollout_times(wall_s=0.0, engine_s=0.0, runner_s=0.0) == {"time/generate": 0.0, "time/grade": 0.0}


def test_stages_give_the_learners_share():
    record = {"time/score_tokens": 1.0, "time/update_policy": 2.0, "time/update_history": 3.0}
    assert time_split(record) == {"time/statistics": 1.0, "time/update": 2.0}
