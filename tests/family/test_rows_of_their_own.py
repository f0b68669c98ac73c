"""Mechanisms with rows of their own beside all others: whole runs on the embedded model."""

import numpy as np
import pytest

from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from tests.hand_made import small_pool

from .conftest import preset
from .test_whole_runs import REFLECT, SMALL, fired, resumed_exactly, steps

BOTH = ("laser.warmup=1", "laser.min_std=0.001", "dph_rl.solved=0.25", "env_runners.max_response_tokens=40")


def test_both_beside_r3_act_and_are_resumed_exactly(build, tmp_path):
    pool = f"environment.data={small_pool(tmp_path, 6)}"
    named = "training.mechanisms=[laser,dph_rl,entropy_bonus,covariance]"

    def config():
        more = (*SMALL, *REFLECT, *BOTH, named, "training.minibatches=2", "training.lr=3e-4")
        return preset("laser", pool, *more, config_class=R3GRPOConfig)

    records, *_ = resumed_exactly(build, config, tmp_path / "checkpoints", before=3, after=3)
    assert fired(records, "laser/loss", "laser/mixed", "dph_rl/kept", "dph_rl/rehearsed", "replay/added")
    assert all(np.isfinite(value) for record in records for value in record.values() if not isinstance(value, str))


def test_a_step_that_leaves_every_group_out_rehearses_alone(build, tmp_path):
    """A share so small that a query counts as solved by one correct response."""
    pool = f"environment.data={small_pool(tmp_path, 4)}"
    easy = ("dph_rl.solved=0.01", "training.queries_per_step=1", "training.group_size=8", "training.lr=3e-4")
    for minibatches in (1, 4):
        config = preset("dph_rl", pool, *SMALL, *BOTH[3:], *easy, f"training.minibatches={minibatches}")
        records = steps(build(config), 10)
        alone = [r for r in records if r["dph_rl/left_out"] == 1 and r["dph_rl/rehearsed"]]
        assert alone and all(record["policy/grad_norm"] > 0 for record in alone[1:])


OTHER_LOSS = ("training.ratio_level=sequence", "training.loss_aggregation=constant")


@pytest.mark.parametrize("loss", [(), pytest.param(OTHER_LOSS, marks=pytest.mark.slow)])
def test_a_confidence_learns_to_tell_correct_responses_from_incorrect_ones(build, loss):
    small = ("training.queries_per_step=16", "training.group_size=8", "training.minibatches=1", "training.lr=1e-3")
    config = preset("laser", *small, *BOTH[3:], *loss, "laser.warmup=1000", config_class=GRPOConfig)
    records = steps(build(config), 12)
    assert np.mean([record["laser/auc"] for record in records[-4:]]) > 0.65
    assert np.mean([record["laser/auc"] for record in records[:1]]) < 0.65
