"""Every preset trains, and says what it is."""

import math

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.main import main
from benchmarks.ablation.arms import ARMS

from .conftest import MEMBERS, preset
from .test_choosing_presets import ACTS
from .test_whole_runs import steps

PRESETS = sorted({arm.method.removesuffix(".yaml") for arm in ARMS.values() if arm.method and arm.algorithm == "grpo"})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PRESETS} - {*ACTS}))
def test_a_preset_trains_on_the_quickstart(build, name):
    """That mechanisms are resumed exactly is shown in test_pairs; the other presets here keep no state."""
    records = steps(build(preset(name, "env_runners.max_response_tokens=48", "training.queries_per_step=4")), 2)
    assert sum(record["policy/trained_tokens"] for record in records) > 0
    for record in records:
        assert math.isfinite(record["policy/loss"]) and record["policy/skipped_steps"] == 0
        assert record["policy/is_bounded"] == 0, "engine and trainer agree in float32"


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("task", ["quickstart", "deepscaler_r1_1p5b"])
@pytest.mark.parametrize("config_class", [GRPOConfig, R3GRPOConfig])
def test_a_preset_goes_on_top_of_any_task(member, task, config_class):
    files = [configs_folder() / f"{task}.yaml", configs_folder() / f"{member}.yaml"]
    config, run = load(files, [], config_class)
    alone, _ = load(files[0], [], config_class)
    assert config.rl_module_settings == alone.rl_module_settings
    assert config.environment_settings == alone.environment_settings
    assert config.training_settings.lr == alone.training_settings.lr
    assert str(run.name).startswith(f"{task}-{member}-")


def test_the_command_line_takes_a_task_and_a_preset(capsys):
    files = [f"--config={configs_folder() / name}.yaml" for name in ("quickstart", "cispo")]
    assert main("grpo", [*files, "training.minibatches=4", "--check"]) == 0
    said = capsys.readouterr().out
    assert "quickstart-cispo-" in said and "128 responses, 4 optimizer steps" in said


def test_no_two_presets_are_the_same():
    settings = [preset(member).to_sections() for member in MEMBERS]
    assert all(one != other for i, one in enumerate(settings) for other in settings[:i])


def test_later_presets_leave_nothing_of_earlier_ones():
    """A preset says all that tells the members apart, so that it may be laid over another."""
    task = configs_folder() / "quickstart.yaml"
    for member in ("grpo", "dr_grpo", "gspo", "cispo"):
        over = [task, configs_folder() / "dapo.yaml", configs_folder() / f"{member}.yaml"]
        found = load(over, ["training.minibatches=1"], GRPOConfig)[0].to_sections()
        alone = preset(member, "training.minibatches=1", "env_runners.max_response_tokens=48").to_sections()
        assert (found["training"], found["reward"]) == (alone["training"], alone["reward"])


@pytest.mark.parametrize("other", PRESETS)
def test_the_paper_to_its_letter_takes_nothing_over_from_another_preset(other):
    files = [configs_folder() / f"{name}.yaml" for name in ("deepscaler_r1_1p5b", other, "paper")]
    both = load(files, [], R3GRPOConfig)[0].to_sections()
    alone = load([files[0], files[2]], [], R3GRPOConfig)[0].to_sections()
    for section in ("training", "reward", "history", "replay", "reflection", "ranking"):
        assert both[section] == alone[section], section


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["training.objective=cispo", "training.dual_clip=3"],
            "training.dual_clip: has no effect with training.objective=cispo, which bounds ratios itself; "
            "fix: training.dual_clip=null",
        ),
        (
            ["training.importance_mode=mask", "training.importance_cap=1"],
            "training.importance_cap: with training.importance_mode=mask, 1 leaves out responses that engine and "
            "trainer agree on; fix: training.importance_cap=2",
        ),
        (
            ["training.importance_floor=0.5"],
            "training.importance_floor: 0.5 has no effect with training.importance_mode=truncate; "
            "fix: training.importance_mode=mask",
        ),
        (
            ["training.advantage=mean", "replay.std_scale=2"],
            "replay.std_scale: 2 scales a standard deviation that training.advantage=mean does not divide by; "
            "fix: replay.std_scale=1",
        ),
        (
            ["reward.overlong_penalty=0.95", "ranking.scope=all", "ranking.baseline=paper"],
            "ranking.max_reward: 0.1 is not below 0.05, the least that a correct response gets with "
            "reward.overlong_penalty; fix: lower one of them",
        ),
        (
            ["ranking.scope=all", "ranking.baseline=paper", "ranking.order=flat"],
            "ranking.scope: all pays all responses of an all-incorrect group alike, in place of their own rewards, as "
            "ranking.order=flat has no ranks; fix: ranking.order=entropy",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(overrides, line):
    with pytest.raises(ConfigError) as raised:
        load(None, overrides, R3GRPOConfig)
    assert str(raised.value) == line


def test_what_is_switched_off_contradicts_nothing():
    load(None, ["training.advantage=mean", "replay.std_scale=2", "replay.enabled=false"], R3GRPOConfig)
    off = ["reward.overlong_penalty=0.95", "ranking.scope=all", "ranking.baseline=paper", "ranking.enabled=false"]
    load(None, off, R3GRPOConfig)
