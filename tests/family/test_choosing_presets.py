"""Presets that choose queries, sizes and stored responses: each acts in short runs, and is resumed exactly."""

import math

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.methods import exgrpo
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.hand_made import small_pool

from .conftest import preset
from .test_whole_runs import SMALL, check_same, fired, steps

LONG = ("env_runners.max_response_tokens=40",)  # room to finish
# By preset: the metrics that show that it acted, and settings with which it does in a few steps.
ACTS = {
    "vade": (("posterior/mixed",), ()),
    "greso": (("greso/skipped", "sampling/refills"), ("training.max_resample_rounds=2",)),
    "vas": (("vas/mixed",), ("vas.interval=2",)),
    "window": (("groups/count",), ()),
    "adcl": (("adcl/measured", "adcl/pass_rate"), ("adcl.interval=1", "adcl.responses=2")),
    "self": (("self_filter/kept",), ()),
    "knapsack": (("knapsack/mixed",), ()),
    "gdro": (("gdro/hardest",), ()),
    "rlep": (("replay/added", "replay/added_correct"), ()),
    "luffy": (("replay/added_correct",), ()),
    "exgrpo": (("replay/added_correct", "exgrpo/candidates"), ()),
    "rorecomp": (("rorecomp/compensated", "rorecomp/buffer"), ("rorecomp.buffer=4",)),
    "prefix_rl": (
        ("prefix_rl/prompts", "prefix_rl/flawed", "prefix_rl/correct"),
        ("prefix_rl.threshold=1", "prefix_rl.flawed=0.4", "env_runners.max_response_tokens=40"),
    ),
    "cog_drift": (("cog_drift/variants", "cog_drift/moved", "cog_drift/open"), ()),
    "delethink": (
        ("response/further_contexts",),
        ("env_runners.max_response_tokens=40",),
    ),
    "supo": (
        ("response/further_contexts", "response/masked"),
        ("environment.max_turns=6", "env_runners.max_context_tokens=320", "env_runners.max_summaries=1"),
    ),
    "fission": (("fission/prompts", "fission/correct"), LONG),
    "scaf_grpo": (("scaf_grpo/solved", "scaf_grpo/replaced"), ("scaf_grpo.warmup=0", *LONG)),
    "egsr": (("scaf_grpo/solved", "scaf_grpo/replaced"), LONG),
    "laser": (("laser/loss", "laser/mixed"), (*LONG, "laser.warmup=1", "laser.min_std=0.001")),
    "dph_rl": (("dph_rl/kept", "dph_rl/rehearsed"), (*LONG, "dph_rl.solved=0.25")),
}

# The mechanisms of the others are resumed exactly in test_pairs.
RESUMED = ("vade", "greso", "vas", "window", "adcl", "luffy", "exgrpo", "delethink", "supo")


@pytest.mark.parametrize("task", ["quickstart", "deepscaler_r1_1p5b"])
@pytest.mark.parametrize("name", ACTS)
def test_a_preset_goes_on_top_of_any_task_and_of_r3(name, task):
    files = [configs_folder() / f"{task}.yaml", configs_folder() / f"{name}.yaml"]
    config, _ = load(files, [], GRPOConfig)
    config.check_settings()
    config, _ = load(files, [], R3GRPOConfig)
    config.check_settings()
    assert config.enabled_mechanisms().count("replay") == 1


@pytest.mark.parametrize("name", ACTS)
def test_a_preset_acts_and_is_resumed_exactly_here_or_in_test_pairs(build, tmp_path, monkeypatch, name):
    monkeypatch.setattr(exgrpo, "START", 0.0)
    tags, settings = ACTS[name]
    pool = f"environment.data={small_pool(tmp_path, 8)}"

    def made():
        return build(preset(name, pool, *SMALL, "training.lr=3e-4", *settings))

    whole = made()
    first = steps(whole, 5)
    path = save_checkpoint(whole, tmp_path / "checkpoints") if name in RESUMED else None
    expected = steps(whole, 2)
    if path is not None:
        resumed = made()
        load_checkpoint(resumed, path)
        assert steps(resumed, 2) == expected
        check_same(resumed, whole)
    assert fired([*first, *expected], *tags)
    for record in (*first, *expected):
        assert math.isfinite(record["policy/loss"]) and record["policy/skipped_steps"] == 0
        assert record["policy/is_bounded"] == 0, "engine and trainer agree in float32"
    responses = [sum(len(group.fresh) for group in whole.batch.rolled_out)]
    assert name not in ("knapsack", "gdro", "vade", "vas") or responses == [5 * 4], "the budget of a step is kept"
