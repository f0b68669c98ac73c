"""The comparison with controls: what it compares, and where."""

import pytest

from benchmarks.evidence import controls


def run(seed, cpu, accuracies):
    evaluations = {"generated_tokens": [0, 100_000, 200_000], "cpu_s": cpu, "pass@1": accuracies}
    return {"seed": seed, "evaluations": evaluations, "totals": {"ranking/groups": 5.0, "ranking/ordered": 1.0}}


@pytest.fixture
def stored(monkeypatch):
    sides = {"r3": [0.0, 0.4, 0.8], "grpo": [0.0, 0.2, 0.2]}
    noise = {"r3": 0.002, "grpo": 0.001}
    speed = {"r3": [0, 20, 40], "grpo": [0, 10, 20]}
    found = {
        arm: {seed: run(seed, speed[arm], [value + seed * noise[arm] for value in values]) for seed in range(3)}
        for arm, values in sides.items()
    }
    monkeypatch.setattr(controls, "runs", lambda _, arm: found[arm])
    monkeypatch.setattr(controls, "ARMS", {"r3": "ours", "grpo": "GRPO"})


def test_pass_at_1_lies_on_lines_between_evaluations(stored):
    assert controls.at_tokens(controls.runs("", "r3")[0]) == pytest.approx(0.6)
    assert controls.at_cpu(controls.runs("", "r3")[0], 10) == pytest.approx(0.2)


def test_arms_are_compared_at_equal_tokens_and_where_the_faster_run_ends(stored, capsys):
    ours, other = controls.runs("", "r3")[0], controls.runs("", "grpo")[0]
    assert controls.at_equal_cpu(ours, other) == pytest.approx(0.4 - 0.2)
    controls.main()
    printed = capsys.readouterr().out
    assert "| `grpo` | GRPO | 0.201 [0.199, 0.203] | +0.401 [+0.399, +0.403] |" in printed
    assert "r3: 3 of 15 ranked groups had an order" in printed
