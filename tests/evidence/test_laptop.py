"""Records and tables of the laptop's runs, and the rewards of its controls."""

import json
from types import SimpleNamespace

import pytest

from algorithms.grpo.types import Group, Sample
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.rng import RngStream, rng_for
from benchmarks import laptop
from benchmarks.laptop_controls import Finishing, Permuted
from tests.hand_made import answer


def evaluation(share):
    """Twelve problems of two kinds; the second kind is never solved."""
    correct = {f"h-{number}": share if number % 2 else 0.0 for number in range(12)}
    return {
        "step": 0,
        "metrics": {"pass@1": share / 2, "mean_tokens": 20.0, "truncated": 0.25, "distinct": 1.0},
        "correct": correct,
        "levels": {uid: ("commas" if int(uid[2:]) % 2 else "questions") for uid in correct},
        "examples": [{"problem": "About | bees.", "response": f"share\n{share}", "correct": share > 0.5}],
    }


def finish(folder, name, after):
    run = RunDirectory.create(folder, name, "run: {}\n")
    run.append_metrics({"step": 1, "throughput/generated_tokens": 100.0, "eval/pass@1": 0.1})
    run.append_metrics({"step": 2, "throughput/generated_tokens": 250.0})
    sides = {"before": evaluation(0.0), "after": evaluation(after)}
    run.write_evaluation(sides)
    measured = {side: one["metrics"] for side, one in sides.items()}
    cost = {"steps": 2, "generated_tokens": 250, "wall_s": 90.0}
    run.write_summary({**cost, "code": {"commit": "abc"}, "eval": measured})


def test_finished_runs_become_records_once_and_tables_show_them(tmp_path):
    file = tmp_path / "records.jsonl"
    for name, after in (("grpo-0", 0.4), ("grpo-1", 0.8), ("r3-laptop-0", 1.0)):
        finish(tmp_path / "runs", name, after)
    RunDirectory.create(tmp_path / "runs", "finishing-0", "run: {}\n")  # still going
    for _ in range(2):
        laptop.add(tmp_path / "runs", file)
    runs = laptop.read_records(file)
    assert [(run.arm, run.seed) for run in runs] == [("grpo", 0), ("grpo", 1), ("r3-laptop", 0)]
    assert runs[0].curve == [[0.0, 0.0], [100.0, 0.1], [250.0, 0.2]]
    # Gains of 20 and 40 points: mean 30, and 12.7 standard errors of 10 to either side.
    grpo, r3 = laptop.gains(runs).splitlines()[2:]
    assert grpo == "| GRPO | 0.0 % | 20.0 %, 40.0 % | +20.0, +40.0 | +30.0 | +30.0 |"
    assert r3.startswith("| R³ | 0.0 % | 50.0 % | +50.0 | +50.0 |")
    assert laptop.difference(runs) == "R³ minus GRPO: +30.0 points"
    assert laptop.difference(runs[:2]) == "R³ minus GRPO: no common seed"
    assert "| `commas` | 0.0 % | 60.0 % | 100.0 % |" in laptop.by_kind(runs)
    assert "| `questions` | 0.0 % | 0.0 % | 0.0 % |" in laptop.by_kind(runs)
    assert "20 → 20 | 25.0 % → 25.0 % | 100.0 % → 100.0 % | 0k | 2 |" in laptop.by_seed(runs)
    assert laptop.answers(runs, laptop.SHOWN).endswith("| About \\| bees. | ✗ share 0.0 | ✗ share 0.4 | ✓ share 1.0 |")
    laptop.draw_curves(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_record_that_is_made_again_takes_the_place_of_the_old_one(tmp_path):
    file = tmp_path / "records.jsonl"
    for folder, after in (("first", 0.4), ("second", 0.6)):
        finish(tmp_path / folder, "grpo-0", after)
        laptop.add(tmp_path / folder, file)
    assert [run.after["metrics"]["pass@1"] for run in laptop.read_records(file)] == [0.3]
    assert len(file.read_text().splitlines()) == 1 and json.loads(file.read_text())["arm"] == "grpo"


@pytest.fixture
def group():
    """Eight answers, rewarded 0 to 7, of which the first four are truncated."""
    request = Request(0, Prompt("q"), 0, 0, Sampling(), Split.TRAIN)
    made = [
        answer(request, prompt=[1], response=[2], correct=False, truncated=number < 4, verdict="different")
        for number in range(8)
    ]
    return Group(Prompt("q"), [Sample(rollout, reward=float(number)) for number, rollout in enumerate(made)])


def services(step):
    return SimpleNamespace(step=step, rng=lambda name, at: rng_for(0, at, RngStream.REPLAY, len(name)))


def test_permuted_rewards_are_the_groups_own_in_another_order(group):
    dealt = []
    for step in (0, 0, 1):
        Permuted(None, services(step)).rewards(group)
        dealt.append([sample.training_reward for sample in group.samples])
        assert sorted(dealt[-1]) == [float(number) for number in range(8)]
    assert dealt[0] == dealt[1] != dealt[2]
    assert dealt[0] != sorted(dealt[0])


def test_finishing_alone_is_paid(group):
    Finishing(None, services(0)).rewards(group)
    assert [sample.training_reward for sample in group.samples] == [0.0] * 4 + [1.0] * 4
