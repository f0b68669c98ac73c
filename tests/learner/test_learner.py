"""RLlib's learner as this library uses it: one exact optimizer step an update, float32 masters, no NaN in sight."""

import copy
import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.samples import scoring_row, training_samples
from algorithms.learner.forward import score
from algorithms.learner.group import score_rows, update_learners
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.own_learners import pack_optimizer, unpack_optimizer

from .recomputation import recompute, relative_error

LIMIT = 48


def configuration(**training):
    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny")
        .env_runners(max_response_tokens=LIMIT)
        .learners(token_budget=700)
        .training(**{"lr": 3e-5, "group_size": 4, "queries_per_step": 8, "grad_clip": 0.0, **training})
        .reward(length_bonus=0.0)
        .evaluation(samples=1, k=[1])
        .debugging(seed=5)
    )


@pytest.fixture(scope="module")
def algorithm(learner_ray):
    algorithm = configuration().build_algo()
    yield algorithm
    algorithm.stop()


@pytest.fixture(scope="module")
def bfloat16_algorithm(learner_ray):
    algorithm = configuration().rl_module(dtype="bfloat16").build_algo()
    yield algorithm
    algorithm.stop()


def learner_of(algorithm):
    return algorithm.learner_group._learner


def rows_of(algorithm, loss_aggregation="token"):
    samples = [(i, sample) for i, group in enumerate(algorithm.batch.groups) for sample in group.samples]
    return training_samples(samples, TrainingSettings(loss_aggregation=loss_aggregation), LIMIT)


def weights(algorithm):
    return copy.deepcopy(learner_of(algorithm).lm.state_dict())


@contextmanager
def gradients_of_the_step(learner):
    """Filled with what AdamW steps on, by parameter: an update leaves no gradient behind."""
    found = {}

    def note(*_):
        found.update((name, parameter.grad.clone()) for name, parameter in learner.lm.named_parameters())

    hook = learner.optimizer.register_step_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def unchanged(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("loss_aggregation", ["token", "response", "constant"])
def test_a_training_step_is_grpo_as_plain_pytorch_computes_it(algorithm, loss_aggregation):
    algorithm.config = algorithm.config.copy(copy_frozen=False).training(loss_aggregation=loss_aggregation)
    lm = learner_of(algorithm).lm
    before = copy.deepcopy(lm).eval()
    with gradients_of_the_step(learner_of(algorithm)) as found:
        algorithm.train()
    assert any(sample.advantage for group in algorithm.batch.groups for sample in group.samples)
    for group in algorithm.batch.groups:
        rewards = np.array([float(sample.rollout.correct) for sample in group.samples])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        assert [sample.advantage for sample in group.samples] == pytest.approx(expected.tolist())
    expected = recompute(
        before,
        algorithm.batch.groups,
        loss_aggregation=loss_aggregation,
        max_response_tokens=LIMIT,
        clip_low=0.2,
        clip_high=0.28,
        importance_cap=2,
    )
    assert relative_error(found, expected.gradients) < 1e-4
    assert algorithm.batch.record["policy/loss"] == pytest.approx(expected.loss, abs=1e-5)
    norm = math.sqrt(sum(float(value.square().sum()) for value in expected.gradients.values()))
    assert algorithm.batch.record["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_step_is_adamws_with_the_learning_rate_given(algorithm):
    algorithm.train()
    learner = learner_of(algorithm)
    other = copy.deepcopy(learner.lm)
    twin = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.0)
    unpack_optimizer(other, twin, pack_optimizer(learner.lm, learner.optimizer))
    with gradients_of_the_step(learner) as found:
        update_learners(algorithm.learner_group, rows_of(algorithm), 3e-4)
    for group in twin.param_groups:
        group["lr"] = 3e-4
    for name, mine in other.named_parameters():
        mine.grad = found[name]
    twin.step()
    assert unchanged(other.state_dict(), learner.lm.state_dict())


@pytest.mark.parametrize("poison", [1.0, math.nan], ids=["stepped", "skipped"])
def test_no_gradient_is_held_while_an_engine_on_the_same_gpu_generates(algorithm, poison):
    algorithm.train()
    rows = rows_of(algorithm)
    rows[3] = replace(rows[3], advantages=poison)
    statistics = update_learners(algorithm.learner_group, rows, 1e-4)
    assert statistics.skipped_steps == (poison != 1.0)
    assert all(parameter.grad is None for parameter in learner_of(algorithm).lm.parameters())


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(algorithm, poison):
    algorithm.train()
    learner = learner_of(algorithm)
    before, moments = weights(algorithm), pack_optimizer(learner.lm, learner.optimizer)
    rows = rows_of(algorithm)
    rows[3] = replace(rows[3], advantages=poison)
    statistics = update_learners(algorithm.learner_group, rows, 1e-3)
    assert statistics.skipped_steps == 1
    assert unchanged(before, weights(algorithm))
    assert unchanged(moments, pack_optimizer(learner.lm, learner.optimizer))
    again = update_learners(algorithm.learner_group, rows_of(algorithm), 1e-3)
    assert again.skipped_steps == 0 and math.isfinite(again.grad_norm)
    assert not unchanged(before, weights(algorithm))


def test_a_step_without_any_advantage_changes_no_weight(algorithm):
    algorithm.train()
    before = weights(algorithm)
    rows = [replace(row, advantages=0.0) for row in rows_of(algorithm)]
    statistics = update_learners(algorithm.learner_group, rows, 1e-3)
    assert statistics.tokens > 0 and statistics.trained_tokens == statistics.grad_norm == statistics.skipped_steps == 0
    assert unchanged(before, weights(algorithm))


def test_scores_are_the_engines_log_probs_and_come_in_the_rows_order(algorithm):
    algorithm.train()
    batch = algorithm.collect_rollouts()
    samples = [sample for group in batch.groups for sample in group.samples]
    rows = [scoring_row(sample) for sample in samples]
    for entropy in (True, False):
        scored = score_rows(algorithm.learner_group, rows, entropy=entropy)
        for sample, (logprobs, entropies) in zip(samples, scored, strict=True):
            assert np.abs(logprobs - sample.rollout.sampling_logprobs).max() < 1e-4
            assert (entropies is not None) == entropy
            if entropy:
                assert entropies.shape == logprobs.shape and (entropies >= 0).all()


def test_bfloat16_trains_float32_masters(bfloat16_algorithm):
    algorithm = bfloat16_algorithm
    before = weights(algorithm)
    for _ in range(2):
        algorithm.train()
        assert algorithm.batch.record["policy/skipped_steps"] == 0
        assert math.isfinite(algorithm.batch.record["policy/loss"])
        assert 0 < algorithm.batch.record["policy/logp_mismatch_max"] < 0.5
    after = weights(algorithm)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    moments = pack_optimizer(learner_of(algorithm).lm, learner_of(algorithm).optimizer)
    assert {tensor.dtype for tensor in moments.values()} == {torch.float32}
    # Steps far below what bfloat16 can hold beside a weight of 1.
    moved = (after["model.norm.weight"] - before["model.norm.weight"]).abs()
    assert 0 < float(moved.max()) < 2**-8


def test_halves_of_weights_train_and_come_back_from_a_checkpoint(learner_ray, tmp_path):
    algorithm = configuration().rl_module(dtype="bfloat16").learners(weights="bfloat16").build_algo()
    try:
        algorithm.train()
        assert algorithm.batch.record["policy/skipped_steps"] == 0
        assert 0 < algorithm.batch.record["policy/logp_mismatch_max"] < 0.5
        learner = learner_of(algorithm)
        held = {**weights(algorithm), **pack_optimizer(learner.lm, learner.optimizer)}
        assert {held[f"model.norm.weight{part}"].dtype for part in ("", "/lower_half")} == {torch.bfloat16, torch.int16}
        path = save_checkpoint(algorithm, tmp_path)
        algorithm.train()
        assert not unchanged(held, {**weights(algorithm), **pack_optimizer(learner.lm, learner.optimizer)})
        load_checkpoint(algorithm, path)
        assert unchanged(held, {**weights(algorithm), **pack_optimizer(learner.lm, learner.optimizer)})
    finally:
        algorithm.stop()


def test_the_optimizers_state_packs_and_unpacks_exactly(algorithm):
    algorithm.train()
    learner = learner_of(algorithm)
    packed = pack_optimizer(learner.lm, learner.optimizer)
    names = {name for name, _ in learner.lm.named_parameters()}
    assert {name.rsplit("/", 1)[0] for name in packed} == names
    other = copy.deepcopy(learner.lm)
    twin = torch.optim.AdamW(other.parameters(), lr=1e-3)
    unpack_optimizer(other, twin, packed)
    again = pack_optimizer(other, twin)
    assert packed.keys() == again.keys() and unchanged(packed, again)
    # What was packed is a copy: training on does not change it.
    kept = copy.deepcopy(packed)
    algorithm.train()
    assert unchanged(kept, packed)
    assert not unchanged(packed, pack_optimizer(learner.lm, learner.optimizer))


def test_an_optimizer_state_of_another_model_is_refused(algorithm):
    learner = learner_of(algorithm)
    with pytest.raises(ValueError, match="'elsewhere'"):
        unpack_optimizer(
            copy.deepcopy(learner.lm), torch.optim.AdamW(learner.lm.parameters()), {"elsewhere/step": torch.tensor(1.0)}
        )


@pytest.mark.parametrize("minibatches", [1, 2])
def test_every_fresh_sample_ends_with_the_log_probs_of_the_policy_that_sampled_it(algorithm, minibatches):
    algorithm.config = algorithm.config.copy(copy_frozen=False).training(
        minibatches=minibatches, loss_aggregation="token"
    )
    learner = learner_of(algorithm)
    before = copy.deepcopy(learner.lm).eval()
    algorithm.train()
    samples = [sample for group in algorithm.batch.groups for sample in group.samples]
    # Several optimizer steps need the log-probs before the first of them; a single one gives them by the way.
    assert all(sample.entropy is not None for sample in samples)
    expected = score(before, [scoring_row(sample) for sample in samples], learner.forward_settings, entropy=True)
    for sample, (logprobs, _) in zip(samples, expected, strict=True):
        assert np.abs(sample.old_logprobs - logprobs).max() < 3e-5
    entropies = np.concatenate([entropy for _, entropy in expected])
    assert algorithm.batch.record["policy/entropy"] == pytest.approx(float(entropies.mean()), rel=1e-4)
    assert algorithm.batch.record["policy/logp_mismatch_max"] < 1e-4


def test_the_log_says_where_the_time_went_and_how_fast_it_was(algorithm):
    algorithm.config = algorithm.config.copy(copy_frozen=False).training(minibatches=1)
    shares = []
    for _ in range(3):  # in one of them the machine does not stop between two parts
        algorithm.train()
        record = algorithm.batch.record
        parts = [record[f"time/{part}"] for part in ("generate", "grade", "statistics", "update", "transfer")]
        assert all(seconds >= 0 for seconds in parts)
        shares.append(sum(parts) / record["time/step"])
    assert 0.5 < max(shares) <= 1
    assert record["throughput/padding_share"] == 0
    assert record["throughput/learner_tokens_per_s"] > 0
    assert "throughput/mfu" not in record  # no peak is known of a CPU
