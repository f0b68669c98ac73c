"""What docs/results/evidence-log.md says of its own runs follows from the files beside it."""

import pytest

from benchmarks.evidence import recheck


def run(seconds, tokens, accuracies, seed=0, arm="r3"):
    steps = list(range(len(tokens)))
    evaluations = {"step": steps, "generated_tokens": tokens, "pass@1": accuracies}
    return {"arm": arm, "seed": seed, "steps": steps[-1], "generated_tokens": tokens[-1], "wall_s": seconds} | {
        "evaluations": evaluations
    }


def test_ranking_by_the_mean_alone_is_the_default_run():
    default, top_1 = recheck.runs("choices", "r3")[0], recheck.runs("choices2", "top-1")[0]
    assert recheck.differing(default, top_1) == []


def test_any_evaluation_that_differs_is_named():
    first = run(10, [0, 100], [0.0, 0.5])
    assert recheck.differing(first, run(20, [0, 100], [0.0, 0.5])) == []
    assert recheck.differing(first, run(10, [0, 100], [0.0, 0.4])) == ["pass@1"]
    assert recheck.differing(first, run(10, [0, 101], [0.0, 0.5])) == ["generated_tokens", "in all"]


@pytest.mark.parametrize(("clock", "expected"), [("steps", 0.1), ("tokens", 0.2)])
def test_seconds_are_spread_over_steps_or_tokens(clock, expected):
    assert recheck.accuracy(run(10, [0, 50, 200], [0.0, 0.2, 0.4]), 2.5, clock) == pytest.approx(expected)


def test_pairs_are_compared_where_the_faster_run_ends(monkeypatch):
    sides = {
        "r3": {seed: run(20, [0, 100], [0.0, 0.8], seed) for seed in (1, 2)},
        "grpo": {seed: run(10, [0, 100], [0.0, 0.3], seed) for seed in (1, 2, 3)},
    }
    monkeypatch.setattr(recheck, "runs", lambda name, arm: sides[arm])
    found = recheck.at_equal_seconds("sums", "r3", "grpo", "tokens")
    assert found and (found.mean, found.count) == (pytest.approx(0.1), 2)


def test_by_the_clock_no_lead_over_grpo_can_be_shown():
    for clock, mean in (("tokens", 0.036), ("steps", -0.017)):
        found = recheck.at_equal_seconds("sums", "r3", "grpo", clock)
        assert found and (round(found.mean, 3), found.count) == (mean, 10) and not found.excludes_zero
