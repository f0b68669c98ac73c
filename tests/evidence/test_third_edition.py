"""The protocol and the tables of the third edition's arms."""

from types import SimpleNamespace

import pytest
import yaml

from benchmarks import evidence
from benchmarks.differences import ahead
from benchmarks.laptop import COUNTS

from .runs import run


def test_arms_are_compared_over_common_seeds():
    runs = [run("grpo", seed, [0.0, 0.5], half=0.075) for seed in (0, 1)]
    runs += [run("r3", seed, [0.5, 1.0], half=0.425) for seed in (0, 1)]
    grpo, r3, flat = evidence.compared([*runs, run("r3-flat", 0, [1.0, 1.0])]).splitlines()[2:]
    assert grpo == "| GRPO | 2 | 0.0 % | 25.0 % |  | -50.0 | 10.0 % | 25.0 % | 1,000 |"
    assert "| 2 | 0.0 % | 75.0 % | +50.0 |  | 40.0 % | 25.0 % | 1,000 |" in r3
    assert "| 1 | 0.0 % | 100.0 % |  |  |  | 25.0 % | 1,000 |" in flat  # evaluated twice: no mean over the run
    assert ahead(runs, "r3-flat", "grpo") is None
    third = [run("grpo", 2, [0.0, 0.5]), run("r3", 2, [0.5, 1.0])]
    assert "| +50.0 [+50.0, +50.0] |" in evidence.compared([*runs, *third])


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


@pytest.mark.parametrize(("regime", "commit"), [("truncated", "502ae8a"), ("incorrect", "28e4e8b")])
def test_every_registered_run_is_recorded_with_its_budget_and_commit(regime, commit):
    protocol = yaml.safe_load(evidence.PROTOCOL.read_text("utf-8"))
    own = protocol["regimes"][regime]
    arms = own.get("arms", protocol["arms"])
    registered = {(arm, seed) for group in arms for arm in arms[group] for seed in range(protocol["seeds"][group])}
    recorded = evidence.laptop.read_records(evidence.records(regime))
    assert {(each.arm, each.seed) for each in recorded} == registered and len(recorded) == len(registered)
    assert all(each.generated_tokens >= own["tokens"] and each.commit.startswith(commit) for each in recorded)
