"""Several passes over a step's responses, and a learning rate that falls: short runs of the embedded model."""

import itertools

import numpy as np
import pytest
import torch

from algorithms.grpo import algorithm as grpo
from algorithms.grpo.learning_rate import learning_rate
from algorithms.learner.forward import ForwardSettings, score
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.names import resolve_model
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.hand_made import small_pool

from .conftest import preset
from .test_whole_runs import REFLECT, SMALL, check_same, fired, r3, resumed_exactly, steps, weights


@pytest.fixture
def pool(tmp_path):
    return f"environment.data={small_pool(tmp_path, 8)}"


@pytest.fixture
def updates(monkeypatch):
    """The rows and the learning rate of each optimizer step."""
    seen, update = [], grpo.update_learners

    def keep(learner_group, rows, lr, **more):
        seen.append((list(rows), lr))
        return update(learner_group, rows, lr, **more)

    monkeypatch.setattr(grpo, "update_learners", keep)
    return seen


def tokens_of(rows):
    return [row.tokens.tobytes() for row in rows]


def plain(*overrides):
    return preset("grpo", *SMALL, "training.beta=0", "training.lr=1e-3", "training.warmup_steps=0", *overrides)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_each_pass_trains_on_every_response_once_with_the_ratios_to_the_policy_before_the_first(
    build, pool, updates, minibatches
):
    algorithm = build(plain(pool, "training.passes=3", f"training.minibatches={minibatches}"))
    steps(algorithm, 1)
    assert len(updates) == 3 * minibatches
    passes = [
        list(itertools.chain(*(rows for rows, _ in updates[start : start + minibatches])))
        for start in range(0, len(updates), minibatches)
    ]
    assert all(sorted(tokens_of(rows)) == sorted(tokens_of(passes[0])) for rows in passes)
    for rows, _ in updates:  # a token mean over each mini-batch
        assert sum(row.weight * row.response_length for row in rows) == pytest.approx(1.0)
    before = load_causal_lm(resolve_model("embedded:tiny"), "float32").eval()
    forward = ForwardSettings(temperature=1.0, token_budget=4096)
    for rows in passes[1:]:
        for row, (expected, _) in zip(rows, score(before, rows, forward, entropy=False), strict=True):
            np.testing.assert_allclose(row.old_logprobs, expected, atol=1e-4)
    orders = {tuple(tokens_of(rows)) for rows in passes}
    assert len(orders) == (1 if minibatches == 1 else 3)


def test_further_passes_move_the_policy_further_and_their_ratios_are_clipped(build, pool):
    tight = ("training.clip_low=0.001", "training.clip_high=0.001")
    once, twice = build(plain(pool, *tight)), build(plain(pool, *tight, "training.passes=2"))
    (one,), (two,) = steps(once, 1), steps(twice, 1)
    assert one["policy/clip_fraction"] == 0 < two["policy/clip_fraction"]
    assert two["policy/trained_tokens"] == 2 * one["policy/trained_tokens"]
    assert two["policy/entropy"] == one["policy/entropy"]
    assert two["policy/logp_mismatch_max"] == one["policy/logp_mismatch_max"] < 1e-4
    assert any(not torch.equal(tensor, weights(twice)[name]) for name, tensor in weights(once).items())


def test_passes_with_a_falling_learning_rate_are_resumed_exactly(build, pool, tmp_path):
    chosen = ("training.passes=2", "training.minibatches=2", "training.lr_schedule=cosine", "training.warmup_steps=3")
    floor = ("training.lr_min_share=0.1", "training.lr=1e-3", "run.steps=6")
    records, whole, _ = resumed_exactly(build, lambda: r3(pool, *chosen, *floor), tmp_path / "checkpoints")
    training = whole.config.training_settings
    assert [record["policy/lr"] for record in records] == [learning_rate(4 * n, training, 6) for n in range(1, 7)]
    assert records[-1]["policy/lr"] < 0.2 * records[0]["policy/lr"]


def test_passes_go_with_replay_and_with_rows_of_their_own(build, pool, tmp_path):
    named = "training.mechanisms=[laser,dph_rl,entropy_bonus,covariance]"
    more = ("laser.warmup=1", "laser.min_std=0.001", "dph_rl.solved=0.75", "training.passes=2", *REFLECT)
    limit = "env_runners.max_response_tokens=40"
    records, *_ = resumed_exactly(
        build,
        lambda: preset("laser", *SMALL, pool, named, *more, limit, config_class=R3GRPOConfig),
        tmp_path / "checkpoints",
    )
    assert fired(records, "replay/added", "reflection/prompts", "laser/loss", "dph_rl/rehearsed")
    assert all(np.isfinite(value) for record in records for value in record.values() if not isinstance(value, str))


def test_a_resumed_run_with_more_steps_continues_on_the_longer_schedule(build, pool, tmp_path):
    def config(run_steps, *more):
        return plain(pool, "training.lr_schedule=linear", f"run.steps={run_steps}", *more)

    short = build(config(4))
    steps(short, 2)
    path = save_checkpoint(short, tmp_path / "checkpoints")
    longer, pinned = build(config(8)), build(config(8, "training.lr_decay_steps=4"))
    load_checkpoint(longer, path)
    load_checkpoint(pinned, path)
    assert [record["policy/lr"] for record in steps(longer, 2)] == pytest.approx([1e-3 * 6 / 8, 1e-3 * 5 / 8])
    assert [record["policy/lr"] for record in steps(pinned, 3)] == pytest.approx([1e-3 * 2 / 4, 1e-3 / 4, 0.0])


def test_one_pass_at_a_constant_rate_is_what_runs_without_these_settings(build, pool):
    named = ("training.passes=1", "training.lr_schedule=constant", "training.mask_truncated=false")
    one, other = build(plain(pool, *named)), build(plain(pool))
    assert steps(one, 2) == steps(other, 2)
    check_same(one, other)
