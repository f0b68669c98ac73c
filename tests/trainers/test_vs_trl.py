"""The comparison with TRL: its arithmetic, its rewards, and one short run of both trainers."""

import json
from argparse import Namespace

import pytest

from algorithms.models.names import resolve_model
from benchmarks import vs_trl
from benchmarks.sides.steps import Comparison, Side, Step
from benchmarks.sides.task import FIXED_ID, Task, endless_model
from benchmarks.sides.trainers import Rewards
from benchmarks.vs_trl import compare, report

REAL = Task("r3env/Math-v0", "", 48)


def steps(seconds, rewards=None):
    rewards = rewards or [0.0] * len(seconds)
    return [Step(s, s / 2, 0.0, 256, 2560, reward) for s, reward in zip(seconds, rewards, strict=True)]


def test_the_ratio_is_of_median_seconds_without_warm_up_and_without_what_came_after_the_pairs():
    comparison = Comparison(1, 3, {"ours": steps([9, 1, 2, 2, 1, 1]), "trl": steps([9, 4, 6, 30])})
    assert comparison.ratio == 3.0
    low, high = comparison.spread
    assert 3.0 <= low < 4.0 < high <= 15.0


def test_what_is_learnt_is_compared_at_the_same_seconds_of_training():
    fast = Comparison(0, 2, {"ours": steps([1] * 10, [0.1 * i for i in range(10)]), "trl": steps([5, 5], [0.2, 0.3])})
    assert fast.learned("ours", 10) == pytest.approx((0.8 + 0.9) / 2)
    assert fast.learned("ours", 5) == pytest.approx(0.4)
    assert fast.learned("trl", 10) == pytest.approx(0.3)
    assert fast.learned("trl", 9) == pytest.approx(0.2), "the last step that had ended"
    assert fast.learnt_by_step("ours", count=1) == pytest.approx(0.1)
    found = report({"real": fast}, seconds=10)["learning"]
    assert found["equal_time_s"] == 10 and found["reward_at_equal_time"]["trl"] == pytest.approx(0.3)
    assert found["reward_against_seconds"]["trl"] == [[5.0, 0.2], [10.0, 0.3]]


@pytest.mark.parametrize(("threads", "limit"), [(1, True), (2, False)])
def test_arithmetic_alone_is_timed_on_one_thread_only(monkeypatch, tmp_path, threads, limit):
    asked = []
    monkeypatch.setattr(vs_trl, "compare", lambda task, **settings: asked.append(settings["limit"]))
    sizes = {"queries": 1, "micro_batch": 8, "token_budget": 64, "seed": 0, "warm_up": 0, "pairs": 1, "seconds": 0.0}
    vs_trl.compare_one("real", Namespace(threads=threads, **sizes), tmp_path)
    assert asked == [limit]


def test_trl_is_rewarded_for_a_right_and_finished_response_only():
    rewards = Rewards(REAL, stop_tokens=[1])
    query = next(iter(rewards.environment.queries.values()))
    texts = [f"\\boxed{{{query.answer}}}", f"\\boxed{{{query.answer}}}", "\\boxed{no}"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    found = rewards(completions, completion_ids=[[7, 1], [7, 8], [7, 1]], uid=[query.uid] * 3, prompts=None)
    assert found == [1.0, 0.0, 0.0]
    assert rewards.tokens == 6


def fails(task, baton):
    raise ValueError("a trainer that cannot start")


@pytest.mark.slow
def test_a_trainer_that_fails_ends_the_comparison():
    with pytest.raises(RuntimeError, match="broken ended"):
        Side("broken", fails, REAL)


@pytest.mark.slow
def test_both_trainers_take_their_steps_in_turn_and_sample_the_same_number_of_tokens(tmp_path):
    pytest.importorskip("trl")
    model = endless_model(tmp_path / "endless")
    task = Task(FIXED_ID, model, 12, queries=2, micro_batch=8, token_budget=512)
    comparison = compare(task, warm_up=1, pairs=1)
    for name in ("ours", "trl"):
        assert [step.samples for step in comparison.steps[name]] == [16, 16]
        assert [step.tokens for step in comparison.steps[name]] == [16 * 12] * 2
        assert all(0.0 < step.reward < 1.0 for step in comparison.steps[name])
        assert all(0.0 < step.generate_s < step.seconds for step in comparison.steps[name])


def test_the_endless_model_cannot_end(tmp_path):
    folder = endless_model(tmp_path / "endless")
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(f"{resolve_model('embedded:tiny')}/config.json", encoding="utf-8") as file:
        assert config["eos_token_id"] >= config["vocab_size"] == json.load(file)["vocab_size"]
