"""Replayed rows in an update, next to fresh ones."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.metrics import update_metrics
from algorithms.grpo.samples import scoring_row, training_samples
from algorithms.grpo.types import Group, Prompt, StepBatch, to_entry, to_sample
from algorithms.history.store import ReplayHistory
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.loss import LossInputs, token_loss
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.r3_grpo.config import R3GRPOConfig

from .conftest import StubR3, reflected, sample

FORWARD = ForwardSettings(token_budget=1000)


@pytest.fixture
def lm():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return Qwen2ForCausalLM(config)


def scored(lm, samples):
    """Behavior log-probs as the learners compute them, all samples in one micro-batch."""
    for one, (logprobs, _) in zip(
        samples, score(lm, [scoring_row(one) for one in samples], FORWARD, entropy=False), strict=True
    ):
        one.old_logprobs = logprobs
    return samples


def rows_of(samples):
    for index, one in enumerate(samples):
        one.advantages = 1.0 - 2.0 * (index % 2)
    return training_samples(list(enumerate(samples)), TrainingSettings(loss_aggregation="token"), 16)


def through_history(samples):
    """As replayed samples: stored, saved, loaded and drawn again."""
    history = ReplayHistory(capacity=None, dedupe=False)
    for one in samples:
        history.add(to_entry(one, 1))
    arrays, metadata = history.state_dict()
    loaded = ReplayHistory(capacity=None, dedupe=False)
    loaded.load_state_dict(arrays, metadata)
    return [to_sample(entry, 0) for entry in loaded.entries("q", correct=False)]


def test_an_unchanged_policy_gives_replayed_rows_a_ratio_of_exactly_one_in_the_same_microbatch(lm):
    fresh = scored(lm, [sample([10, 11, 12, 13]), reflected([20, 21, 22]), sample([30, 31])])
    replayed = through_history(fresh)
    assert [one.rollout.tokens.tolist() for one in replayed] == [one.rollout.tokens.tolist() for one in fresh]
    rows = rows_of(replayed)
    assert not any(row.on_policy for row in rows)
    statistics = accumulate_gradients(lm, rows, FORWARD, LossSettings())
    assert statistics.trained_tokens == 9
    assert statistics.max_ratio_deviation == 0.0


def test_a_fresh_row_and_its_replayed_twin_side_by_side_have_a_ratio_of_exactly_one(lm):
    twins = scored(lm, [reflected([20, 21, 22]), reflected([20, 21, 22])])
    mixed = [twins[0], *through_history(twins[1:])]
    rows = rows_of(mixed)
    assert [row.on_policy for row in rows] == [True, False]
    np.testing.assert_array_equal(rows[0].old_logprobs, rows[1].old_logprobs)
    assert accumulate_gradients(lm, rows, FORWARD, LossSettings()).max_ratio_deviation == 0.0


def test_a_changed_policy_does_not(lm):
    replayed = through_history(scored(lm, [sample([10, 11, 12, 13])]))
    with torch.no_grad():
        lm.model.norm.weight.mul_(1.01)
    assert accumulate_gradients(lm, rows_of(replayed), FORWARD, LossSettings()).max_ratio_deviation > 1e-4


def test_policy_entropy_is_that_of_the_fresh_rows(lm):
    fresh = [sample([10, 11, 12, 13]), sample([20, 21])]
    for one in fresh:
        one.old_logprobs = None
    replayed = through_history(scored(lm, [reflected([40, 41, 42]), reflected([43])]))
    statistics = accumulate_gradients(lm, rows_of([*fresh, *replayed]), FORWARD, LossSettings())

    def entropies(samples):
        results = score(lm, [scoring_row(one) for one in samples], FORWARD, entropy=True)
        return np.concatenate([entropy for _, entropy in results])

    assert sorted(statistics.entropies) == [0, 1]
    for index, one in enumerate([*fresh, *replayed]):
        measured = statistics.entropies[index] if index < 2 else entropies([one])
        one.entropy = float(measured.sum())
    expected = entropies(fresh).mean()
    assert abs(entropies([*fresh, *replayed]).mean() - expected) > 1e-3
    group = Group(Prompt("a"), [*fresh, *replayed])
    assert update_metrics([group], [statistics])["policy/entropy"] == pytest.approx(expected, rel=1e-5)


def test_replayed_rows_say_nothing_of_the_engines_mismatch(lm):
    (fresh,) = scored(lm, [sample([10, 11])])
    fresh.rollout = replace(fresh.rollout, sampling_logprobs=fresh.old_logprobs)
    (replayed,) = through_history(scored(lm, [sample([20, 21])]))
    replayed.old_logprobs = replayed.old_logprobs - 1
    statistics = accumulate_gradients(lm, rows_of([fresh, replayed]), FORWARD, LossSettings())
    assert statistics.max_logp_mismatch < 1e-5
    assert statistics.max_ratio_deviation > 0.5


def slope(stored, now, advantage, **settings):
    """d loss / d log-prob of a token that was stored with one probability and has another now, as replay makes it."""
    algorithm = StubR3(R3GRPOConfig().apply({"replay": settings} if settings else {}))
    algorithm.history.add(to_entry(sample([10], logprob=math.log(stored)), 1))
    group = Group(Prompt("q"), [sample([20], True)])
    algorithm.compose_groups(StepBatch(5, groups=[group]))
    (replayed,) = (one for one in group.samples if one.replayed)
    replayed.advantages = advantage
    row, training = training_samples([(0, replayed)], TrainingSettings(), 16)[0], TrainingSettings()
    settings = LossSettings.of(training)
    logprobs = torch.tensor([math.log(now)], requires_grad=True)
    loss, _ = token_loss(logprobs, None, LossInputs.of([row], torch.device("cpu"), settings), settings)
    loss.backward()
    return float(logprobs.grad)


def test_by_default_no_replayed_failure_pushes_with_more_than_three_times_its_advantage():
    assert slope(0.9, 0.9, -2.65) == pytest.approx(2.65)
    assert slope(0.01, 0.9, -2.65, dual_clip=None) == pytest.approx(238.5), "the paper's"
    stored = (0.01, 0.1, 0.25, 0.31, 0.5, 0.9)
    pushed = [slope(probability, 0.9, -2.65) for probability in stored]
    assert pushed[:3] == [0, 0, 0] and pushed[3] == pytest.approx(2.65 * 0.9 / 0.31)
    assert max(pushed) <= 3 * 2.65


def test_the_papers_letter_has_no_such_bound_and_the_relatives_have_their_authors():
    def bound(*names, config_class=R3GRPOConfig):
        files = [configs_folder() / f"{name}.yaml" for name in names]
        return load(files, [], config_class)[0].replay_settings.dual_clip

    assert R3GRPOConfig().replay_settings.dual_clip == bound("quickstart") == bound("deepscaler_r1_1p5b") == 3.0
    assert [bound(name) for name in ("paper", "paper_r1_1p5b", "paper_r1_7b")] == [None] * 3
    # recipe/rlep/rlep_training.sh has clip_ratio_c=10; f(r) replaces both clips in mix_core_alg.py of LUFFY and ExGRPO.
    relatives = [bound(name, config_class=GRPOConfig) for name in ("rlep", "luffy", "exgrpo")]
    assert relatives == [10.0, None, None]


@pytest.mark.parametrize(("bound", "is_pushed"), [(None, True), (30.0, True), (3.0, False)])
def test_a_failure_that_the_policy_came_to_write_more_is_pushed_down_as_far_as_the_bound(lm, stub, bound, is_pushed):
    """The stored log-probs lie 3 nats below the policy's: a ratio of 20."""
    algorithm = stub(replay={"dual_clip": bound})
    (failure,) = scored(lm, [sample([10, 11])])
    failure.old_logprobs = failure.old_logprobs - 3
    algorithm.history.add(to_entry(failure, 1))
    group = Group(Prompt("q"), [sample([20], True)])
    algorithm.compose_groups(StepBatch(5, groups=[group]))
    (replayed,) = (one for one in group.samples if one.replayed)
    replayed.advantages = -1.0
    statistics = accumulate_gradients(
        lm, training_samples([(0, replayed)], TrainingSettings(), 16), FORWARD, LossSettings()
    )
    assert any(parameter.grad.any() for parameter in lm.parameters() if parameter.grad is not None) == is_pushed
    assert statistics.replayed_clipped == (0 if is_pushed else 2)
