"""What each run is trained with, before any begins."""

from pathlib import Path

import pytest
import yaml

from algorithms.config.errors import ConfigError
from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from benchmarks.ablation.arms import ARMS
from benchmarks.ablation.plan import CONFIGS, State, Task, differences, plan, refuse_others, state

OUT = Path("runs/never")


def jobs(*arms, seeds=(0,), overrides=(), tokens=0, out=OUT):
    return plan([ARMS[name] for name in arms], seeds, Task(overrides=tuple(overrides), tokens=tokens), out)


def method(name):
    return yaml.safe_load((configs_folder() / name).read_text(encoding="utf-8"))


def test_every_arm_has_had_a_seed_before_any_has_the_next():
    assert [job.name for job in jobs("grpo", "r3", seeds=(5, 6))] == ["grpo-5", "r3-5", "grpo-6", "r3-6"]


def test_all_arms_have_the_tasks_rewards(tmp_path):
    """Else the bonus for brevity, a default of R³ alone, would be compared with the mechanisms."""

    def bonus(text):
        file = tmp_path / "task.yaml"
        file.write_text(text)
        arms = [ARMS[name] for name in ("grpo", "r3", "r3-no-ccr", "rlep", "r3-paper")]
        return [job.sections["reward"]["length_bonus"] for job in plan(arms, (0,), Task((file,)), OUT)]

    assert bonus("evaluation: {k: [1]}") == [0, 0, 0, 0, 1]
    assert bonus("evaluation: {k: [1]}\nreward: {length_bonus: 0.5}") == [0.5, 0.5, 0.5, 0, 1]


def test_arms_of_r3_bound_replayed_ratios_as_by_default_and_the_letter_does_not():
    r3, paper, rlep = jobs("r3", "r3-paper", "rlep")
    assert r3.sections["replay"]["dual_clip"] == 3 and paper.sections["replay"]["dual_clip"] is None
    assert rlep.sections["replay"]["dual_clip"] == 10


def test_dapo_is_its_file_on_the_tasks_optimization():
    grpo, dapo = jobs("grpo", "dapo", overrides=["training.lr=3e-4"])
    given = method("dapo.yaml")
    for key in ("max_resample_rounds", "clip_low", "clip_high", "loss_aggregation"):
        assert dapo.sections["training"][key] == given["training"][key]
    assert dapo.sections["reward"]["overlong_penalty"] == given["reward"]["overlong_penalty"]
    assert given["training"]["minibatches"] != grpo.sections["training"]["minibatches"]
    for key in ("lr", "warmup_steps", "group_size", "queries_per_step", "minibatches"):
        assert dapo.sections["training"][key] == grpo.sections["training"][key]
    assert dapo.sections["training"]["lr"] == 3e-4


def test_the_papers_letter_keeps_the_tasks_learning_rate_only():
    r3, paper = jobs("r3", "r3-paper")
    given = method("paper.yaml")
    assert paper.sections["training"]["lr"] == r3.sections["training"]["lr"] != given["training"]["lr"]
    assert paper.sections["training"]["beta"] == given["training"]["beta"]
    for section in ("reward", "replay", "reflection", "ranking"):
        assert given[section].items() <= paper.sections[section].items()


def test_a_mechanisms_settings_go_to_the_arms_that_have_it():
    grpo, r3 = jobs("grpo", "r3", overrides=["replay.k=3"])
    assert "replay" not in grpo.sections
    assert r3.sections["replay"]["k"] == 3


def test_an_arms_own_settings_win_over_those_of_all():
    own = ARMS["dapo"].with_settings(["training.lr=5e-5"])
    (job,) = plan([own], [0], Task(overrides=("training.lr=3e-4",)), OUT)
    assert job.sections["training"]["lr"] == 5e-5


def test_a_token_budget_ends_a_run_and_steps_do_not():
    (job,) = jobs("r3", tokens=100_000)
    training = job.sections["training"]
    assert job.run.max_generated_tokens == 100_000
    assert job.run.steps * training["group_size"] * training["queries_per_step"] >= 100_000
    assert jobs("r3", tokens=100_000, overrides=["run.steps=7"])[0].run.steps == 7


def test_an_arms_own_steps_hold_beside_a_token_budget():
    arms = [ARMS["r3"].with_settings(["run.steps=14"]), ARMS["grpo"]]
    own, other = plan(arms, [0], Task(tokens=100_000), OUT)
    assert own.run.steps == 14 and own.run.max_generated_tokens == 100_000
    assert other.run.steps > 14


def test_an_ablation_without_pass_at_1_is_refused():
    line = r"^arm r3: evaluation\.k: \[8\] must contain 1: .*; fix: evaluation\.k=\[1,8\]$"
    with pytest.raises(ConfigError, match=line):
        jobs("r3", overrides=["evaluation.k=[8]"])
    (job,) = jobs("r3", overrides=["evaluation.k=[8,1]"])
    assert job.sections["evaluation"]["k"] == [8, 1]


def test_the_file_of_a_run_says_all_of_it(tmp_path):
    (job,) = jobs("r3-paper", seeds=(4,), tokens=1000, out=tmp_path)
    file = tmp_path / "asked.yaml"
    file.write_text(job.yaml)
    config, run = load(file, [], CONFIGS["r3_grpo"])
    assert (config.to_sections(), run) == (job.sections, job.run)
    assert (run.seed, run.name, run.dir) == (4, "r3-paper-4", str(tmp_path))


def test_the_hash_is_that_of_the_settings_without_the_seed():
    first, second = jobs("r3", seeds=(1, 2))
    assert first.settings_hash == second.settings_hash
    assert jobs("r3", overrides=["replay.k=3"])[0].settings_hash != first.settings_hash
    assert jobs("r3", overrides=["run.save_rollouts=true"])[0].settings_hash == first.settings_hash
    assert jobs("grpo")[0].settings_hash != first.settings_hash


def test_a_wrong_setting_names_the_arm():
    with pytest.raises(ConfigError, match=r"arm grpo: training\.lrr: no such setting; did you mean training\.lr\?"):
        jobs("grpo", overrides=["training.lrr=1"])


def stored(job):
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").write_text(job.yaml)
    return job


def test_a_run_is_missing_begun_or_finished(tmp_path):
    (job,) = jobs("grpo", out=tmp_path)
    assert state(job) is State.MISSING
    stored(job)
    assert state(job) is State.BEGUN
    (job.folder / "summary.json").write_text("{}")
    assert state(job) is State.FINISHED


def test_a_stored_run_with_other_settings_is_refused_by_name(tmp_path):
    stored(jobs("r3", overrides=["training.lr=1e-4"], out=tmp_path)[0])
    (asked,) = jobs("r3", overrides=["training.lr=2e-4", "replay.k=2"], out=tmp_path)
    found = differences(asked)
    assert "training.lr=0.0001, asked for 0.0002" in found
    assert {text.partition("=")[0] for text in found} <= {"training.lr", "replay.k"}
    with pytest.raises(ConfigError, match=r"r3-0: was trained with other settings: training\.lr=0\.0001, asked for"):
        refuse_others([asked])


def test_settings_that_change_nothing_of_what_is_learnt_may_differ(tmp_path):
    stored(jobs("r3", overrides=["run.checkpoint_every=3"], out=tmp_path)[0])
    refuse_others(jobs("r3", overrides=["run.save_rollouts=true"], out=tmp_path))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (job,) = jobs("grpo", out=tmp_path)
    job.folder.mkdir()
    with pytest.raises(ConfigError, match="grpo-0: not a run.*fix: delete it"):
        refuse_others([job])
