"""What TRL and this project learn: each part's reward counts tokens, and the interval is over seeds."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.trl_learning import Run, add, by_part, read, table


def run(side, seed, rewards, tokens=100):
    return Run(side, seed, [tokens] * len(rewards), rewards, 1, "abc", "2 cores", {"trl": "1"})


def test_a_part_weighs_steps_by_their_tokens():
    # Ends of steps at 100, 400, 600 and 800 tokens; parts of 150 in the first 600.
    made = Run("ours", 0, [100, 300, 200, 200], [0.0, 0.3, 0.6, 0.9], 1, "", "", {})
    assert by_part(made, 600) == pytest.approx([0.3 * 50 / 150, 0.3, (0.3 * 100 + 0.6 * 50) / 150, 0.6])


def test_runs_are_added_once_and_the_table_has_welchs_interval(tmp_path):
    file = tmp_path / "runs.jsonl"
    rewards = {"ours": (0.4, 0.5, 0.6), "trl": (0.3, 0.5, 0.54)}
    for _ in range(2):
        for side, values in rewards.items():
            for seed, value in enumerate(values):
                add(run(side, seed, [*[0.1 + seed / 10] * 3, value]), file)
    found = read(file)
    assert [(each.side, each.seed) for each in found] == [(side, seed) for side in rewards for seed in range(3)]
    *_, last, whole = table(found).splitlines()
    ours, trl = (np.array(values) for values in rewards.values())
    # Welch's: the standard error of the difference, and Satterthwaite's degrees of freedom.
    parts = ours.var(ddof=1) / 3, trl.var(ddof=1) / 3
    half = stats.t.ppf(0.975, sum(parts) ** 2 / sum(part**2 / 2 for part in parts)) * np.sqrt(sum(parts))
    interval = f"[{ours.mean() - trl.mean() - half:+.3f}, {ours.mean() - trl.mean() + half:+.3f}]"
    assert last == f"| 300 to 400 | 0.400, 0.500, 0.600 | 0.300, 0.500, 0.540 | +0.053 {interval} |"
    assert whole.startswith("| all | 0.175, 0.275, 0.375 | 0.150, 0.275, 0.360 | +0.013 [")


def test_a_table_needs_two_seeds_a_side():
    with pytest.raises(ValueError, match="two runs"):
        table([run("ours", 0, [0.5]), run("ours", 1, [0.5]), run("trl", 0, [0.5])])
