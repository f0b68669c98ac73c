"""The intervals and the table of the third edition's arms."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from benchmarks import evidence
from benchmarks.ablation.arms import chosen_arms
from benchmarks.ablation.plan import Task, plan
from benchmarks.laptop import COUNTS


def test_the_interval_covers_seeds_and_problems_both_drawn_at_random():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        seeds, problems, rest = (
            rng.normal(0, scale, shape) for scale, shape in ((1, (4, 1)), (5, (1, 40)), (4, (4, 40)))
        )
        found = evidence.crossed_interval(2.0 + seeds + problems + rest)
        covered += found.low <= 2.0 <= found.high
    assert 0.92 < covered / 400 < 0.99


def test_the_interval_by_hand():
    # Seeds differ, problems do not: Student's t over two seeds, 12.706 standard errors of 1.
    only_seeds = evidence.crossed_interval(np.array([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]))
    assert (only_seeds.low, only_seeds.high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    same = evidence.crossed_interval(np.full((2, 3), 0.5))
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)


def run(arm, seed, shares, cpu_s=50.0, first=0.0, half=None, machine="2 cores"):
    sides = {
        "before": {"metrics": {"pass@1": 0.0}, "correct": {"p0": first}},
        "after": {
            "metrics": {"pass@1": float(np.mean(shares)), "truncated": 0.25},
            "correct": {f"p{i}": v for i, v in enumerate(shares)},
            "levels": {f"p{i}": ("commas", "questions")[i % 2] for i in range(len(shares))},
        },
    }
    end = float(np.mean(shares))
    curve = [[0.0, 0.0], *([[50_000.0, half]] if half is not None else []), [100_000.0, end]]
    own = {"steps": 5 if arm == "r3" else 10, "cpu_s": cpu_s, "curve": curve, "machine": machine}
    return SimpleNamespace(arm=arm, seed=seed, generated_tokens=1000, **own, **sides)


def test_arms_are_compared_over_common_seeds():
    runs = [run("grpo", seed, [0.0, 0.5], half=0.075) for seed in (0, 1)]
    runs += [run("r3", seed, [0.5, 1.0], half=0.425) for seed in (0, 1)]
    grpo, r3, flat = evidence.compared([*runs, run("r3-flat", 0, [1.0, 1.0])]).splitlines()[2:]
    assert grpo == "| GRPO | 2 | 0.0 % | 25.0 % |  | -50.0 | 10.0 % | 25.0 % | 1,000 |"
    assert "| 2 | 0.0 % | 75.0 % | +50.0 |  | 40.0 % | 25.0 % | 1,000 |" in r3
    assert "| 1 | 0.0 % | 100.0 % |  |  |  | 25.0 % | 1,000 |" in flat  # evaluated twice: no mean over the run
    assert evidence.ahead(runs, "r3-flat", "grpo") is None
    third = [run("grpo", 2, [0.0, 0.5]), run("r3", 2, [0.5, 1.0])]
    assert "| +50.0 [+50.0, +50.0] |" in evidence.compared([*runs, *third])


def test_a_difference_is_taken_in_other_ways_too():
    runs = [run("grpo", seed, [0.0, 0.5] * 2, half=0.1) for seed in range(3)]
    # Ahead by 50 points on commas, and by 0, 20 and 10 on questions. The third seed began otherwise. Equal half-way,
    # and r3 takes twice the tokens a step.
    runs += [run("r3", s, [0.5, 0.5 + more] * 2, first=s == 2, half=0.1) for s, more in enumerate((0.0, 0.2, 0.1))]
    lines = evidence.doubts(runs).splitlines()
    rows = dict(line.strip("| ").split(" | ") for line in lines[2:])
    assert rows["as registered"].startswith("+30.0 [")
    assert rows["errors pooled over all arms"] == with_t(30.0, [25.0, 35.0, 30.0])
    assert rows["seeds on one kind of processor: 0, 1"] == "+30.0"
    assert rows["without `commas`"] == with_t(10.0, [0.0, 20.0, 10.0])
    assert rows["at 50k tokens, by seed"] == "+0.0 [+0.0, +0.0]"
    assert rows["at 80k tokens, by seed"] == with_t(18.0, [15.0, 21.0, 18.0])
    assert rows["seed after seed"] == "+25.0, +35.0, +30.0"
    assert rows["signs flipped; p of 3 seeds is 0.25 or more"] == "p = 0.25"
    assert rows["after as many steps, by seed"] == with_t(45.0, [40.0, 50.0, 45.0])
    assert rows["mean over the run, by seed"] == with_t(7.5, [6.25, 8.75, 7.5])
    assert "2 seeds in common: too few" in evidence.doubts([each for each in runs if each.seed < 2])


def with_t(mean, values):
    """Write a mean with Student's interval over three seeds, as where one of two arms has no spread."""
    half = 4.30265 * np.std(values, ddof=1) / np.sqrt(3)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def test_an_arm_of_one_seed_is_recorded_and_not_shown(monkeypatch):
    recorded = [run("grpo", 0, [0.0]), run("grpo", 1, [0.0]), run("r3", 0, [1.0])]
    monkeypatch.setattr(evidence.laptop, "read_records", lambda _: recorded)
    assert [(each.arm, each.seed) for each in evidence.read("truncated")] == [("grpo", 0), ("grpo", 1)]


def test_runs_of_other_code_do_not_join_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evidence.laptop, "read_records", lambda _: [SimpleNamespace(commit="aaa")])
    monkeypatch.setattr(evidence.laptop, "read_runs", lambda _: [SimpleNamespace(commit="bbb")])
    monkeypatch.setattr(evidence.laptop, "add", lambda *_: pytest.fail("added"))
    monkeypatch.setattr("sys.argv", ["evidence", "truncated", str(tmp_path)])
    with pytest.raises(SystemExit):
        evidence.main()
    assert "runs of bbb cannot join those of aaa in third-truncated.jsonl; fix: " in capsys.readouterr().err
    # Nor are any trained with it.
    monkeypatch.setattr(evidence.laptop, "read_runs", lambda _: [])
    monkeypatch.setattr(evidence, "train", lambda _: pytest.fail("trained"))
    monkeypatch.setattr(evidence, "code_commit", lambda: "ccc")
    monkeypatch.setattr("sys.argv", ["evidence", "truncated", str(tmp_path), "--run", "2"])
    with pytest.raises(SystemExit):
        evidence.main()
    assert "runs of ccc cannot join those of aaa" in capsys.readouterr().err


def test_what_was_tried_before_the_registration():
    lines = evidence.developed().splitlines()
    assert "| 24 | 48 | 4e-05 | 12 | 2.7 % → 29.0 % | 2.7 % → 23.7 % |  |" in lines


def test_processor_seconds_of_a_token_compare_within_a_seed():
    runs = [run("grpo", 0, [0.0], cpu_s=40.0), run("grpo", 1, [0.0], cpu_s=80.0), run("r3", 1, [0.0], cpu_s=100.0)]
    runs += [run("r3-flat", 0, [0.0], cpu_s=60.0), run("r3", 2, [0.0]), run("r3", 0, [0.0], first=1.0)]
    runs += [run("dapo", 0, [0.0], machine="another")]
    assert evidence.costs(runs[:2]) == "no arm has a seed with grpo on the same machine"
    assert evidence.costs(runs).splitlines() == [
        "| arm | seed 0 | seed 1 |",
        "|---|---|---|",
        "| R³ (our variant), by entropy |  | 1.25 |",
        "| R³ (our variant), flat | 1.50 |  |",
    ]


def test_the_shares_in_which_mechanisms_act():
    counted = {name: 0.0 for name in COUNTS} | {"groups/count": 40.0}
    runs = [
        SimpleNamespace(arm="grpo", counts=counted),
        SimpleNamespace(arm="r3", counts=counted | {"ranking/ordered": 10.0, "replay/added": 2.0}),
        SimpleNamespace(arm="r3", counts=counted | {"ranking/ordered": 30.0}),
        SimpleNamespace(arm="r3", counts={}),  # recorded before counts were
    ]
    assert evidence.acting(runs).splitlines()[2:] == ["| R³ (our variant), by entropy | 0 % | 50 % | 0 % | 2 % |"]


@pytest.mark.parametrize(
    ("regime", "group", "queries"),
    [("truncated", "primary", 48), ("truncated", "secondary", 48), ("incorrect", "primary", 24)],
)
def test_the_protocol_is_what_its_runs_are_trained_with(regime, group, queries, tmp_path):
    protocol = yaml.safe_load(evidence.PROTOCOL.read_text("utf-8"))
    given = evidence.ablation(protocol, regime, tmp_path, group)
    task = Task((Path(protocol["config"]),), tuple(given[given.index(str(tmp_path)) + 1 :]), int(given[7]))
    jobs = plan(chosen_arms(given[3].split(","), [], None), range(int(given[5])), task, tmp_path)
    arms = protocol["regimes"][regime].get("arms", protocol["arms"])[group]
    assert [job.arm for job in jobs[: len(arms)]] == arms
    assert len(jobs) == protocol["seeds"][group] * len(arms)
    assert {job.run.max_generated_tokens for job in jobs} == {protocol["regimes"][regime]["tokens"]}
    assert {job.sections["environment"]["data"] for job in jobs} == {f"train#seed=1,size={queries}"}
    others = {"flat-penalty": "flat", "r3-flat": "flat", "r3-random-rank": "random"}
    for job in jobs:
        ranking = job.sections.get("ranking", {})
        if ranking.get("enabled"):
            assert ranking["order"] == others.get(job.arm, "entropy"), job.arm
