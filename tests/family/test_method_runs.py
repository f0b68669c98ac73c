"""What further methods do in whole steps of the embedded model."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.advantages import group_advantages
from algorithms.grpo.built_in import KLReward
from algorithms.grpo.samples import scoring_row
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.learner.forward import score

from .conftest import preset
from .test_whole_runs import resumed_exactly, steps

SMALL = (
    "training.queries_per_step=6",
    "training.group_size=4",
    "training.minibatches=1",
    "training.warmup_steps=0",
    "training.lr=1e-2",
    "env_runners.max_response_tokens=40",
)


def test_where_nothing_but_the_kl_differs_beta_weighs_as_in_a_group_half_of_which_is_correct():
    def advantages(beta, *rewards, finite=True):
        samples = [Sample(SimpleNamespace(correct=False, response_length=1), reward) for reward in rewards]
        for sample, kl in zip(samples, (1.0, 1.4), strict=True):
            sample.old_logprobs = np.full(1, -kl if finite else np.nan, np.float32)
        given = SimpleNamespace(  # with the advantage that is divided by the deviation
            config=SimpleNamespace(training_settings=TrainingSettings(kl_in="reward", kl_estimator="k1", beta=beta)),
            measure=lambda samples: None,
            score_under=lambda samples, under: [np.zeros(1, np.float32) for _ in samples],
        )
        one, group = KLReward(None, given), Group(Prompt("q"), samples)
        one.normalize(group)
        one.before_advantages(StepBatch(0, groups=[group]))
        paid = [sample.training_reward for sample in samples]
        return group_advantages(paid, std_scale=1.0, std_floor=group.std_floor).tolist()

    assert advantages(0.1, 0.0, 0.0) == pytest.approx([-0.04, 0.04], abs=1e-4)
    assert advantages(0.01, 0.0, 0.0) == pytest.approx([-0.004, 0.004], abs=1e-5)
    assert advantages(0.1, 0.0, 1.0) == pytest.approx([-1, 1], abs=1e-3)
    assert advantages(0.1, 0.0, 0.0, finite=False) == [0, 0], "the update skips a policy that overflowed"


@pytest.mark.parametrize(
    ("advantage", "correct", "floor"),
    [("std", False, 0.5), ("mean", False, 0.0), ("hgpo", False, 0.5), ("ngrpo", True, 0.5), ("ngrpo", False, 0.0)],
)
def test_the_kl_alone_is_bounded_wherever_its_own_deviation_divides(advantage, correct, floor):
    training = TrainingSettings(kl_in="reward", beta=0.1, advantage=advantage)
    samples = [Sample(SimpleNamespace(correct=correct), 1.0) for _ in range(2)]
    group = Group(Prompt("q"), samples)
    KLReward(None, SimpleNamespace(config=SimpleNamespace(training_settings=training))).normalize(group)
    assert group.std_floor == floor


def fresh(algorithm):
    return [sample for group in algorithm.batch.groups for sample in group.fresh]


def scored(lm, samples, learner):
    """Log-probs and entropies of each sample, in a pass of its own."""
    return [score(lm, [scoring_row(each)], learner.forward_settings, entropy=True)[0] for each in samples]


def test_rl_zvp_trains_on_groups_that_grpo_passes_over_by_the_entropies_of_the_policy_that_sampled(build):
    algorithm = build(preset("rl_zvp", *SMALL, "rl_zvp.alpha=0.3"))
    learner = algorithm.learner_group._learner
    before = copy.deepcopy(learner.lm).eval()
    algorithm.train()
    silent = [group for group in algorithm.batch.groups if group.homogeneous]
    assert silent and any(not group.homogeneous for group in algorithm.batch.groups)
    assert algorithm.batch.record["groups/zero_advantage"] == 0
    samples = [sample for group in silent for sample in group.samples]
    measured = scored(before, samples, learner)
    for sample, (_, entropies) in zip(samples, measured, strict=True):
        sign = 1 if sample.rollout.correct else -1
        expected = entropies if sign > 0 else entropies.max() - entropies
        np.testing.assert_allclose(sample.advantages, 0.3 * sign * expected, atol=1e-4)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_reward_pays_for_the_distance_from_the_first_model(build, estimator):
    kl = ("training.kl_in=reward", "training.beta=0.25", f"training.kl_estimator={estimator}")
    algorithm = build(preset("grpo", *SMALL, *kl))
    learner = algorithm.learner_group._learner
    first = copy.deepcopy(learner.lm).eval()
    algorithm.train()
    assert abs(algorithm.batch.record["policy/kl"]) < 1e-6, "nothing has changed yet"
    second = copy.deepcopy(learner.lm).eval()
    algorithm.train()
    samples, record = fresh(algorithm), algorithm.batch.record
    pairs = [scored(lm, samples, learner) for lm in (second, first)]
    for sample, (policy, _), (reference, _) in zip(samples, *pairs, strict=True):
        distance = (policy - reference).astype(np.float64)
        tokens = distance if estimator == "k1" else np.exp(-distance) - 1 + distance
        assert sample.kl == pytest.approx(tokens.sum(), abs=1e-3)
        assert sample.training_reward == pytest.approx(sample.reward - 0.25 * sample.kl)
    assert record["policy/kl"] == pytest.approx(
        sum(sample.kl for sample in samples) / sum(sample.rollout.response_length for sample in samples)
    )
    assert record["policy/kl"] > 1e-3
    gap = record["reward/mean"] - record["reward/training_mean"]
    assert gap == pytest.approx(0.25 * np.mean([sample.kl for sample in samples]))
    assert record["policy/entropy"] > 0, "scored samples have theirs"


def test_a_penalty_in_the_reward_is_none_in_the_loss(build):
    settings = preset("grpo", "training.kl_in=reward").training_settings
    assert settings.beta > 0 and settings.loss_beta == 0
    algorithm = build(preset("grpo", *SMALL, "training.kl_in=reward"))
    assert algorithm.learner_group._learner.reference is not None


def test_entropy_control_is_resumed_exactly_and_moves_what_it_is_there_to_move(build, tmp_path):
    """Coefficient and draws of a resumed run are those of an uninterrupted one."""
    bonus = ("entropy_bonus.target=50", "entropy_bonus.step=0.05", "entropy_bonus.most=1")
    both = "training.mechanisms=[entropy_bonus,covariance]"
    held = ("covariance.share=0.05", "covariance.low=0.01", "covariance.high=50", "training.lr=1e-4")

    def config(*more):
        return preset("entropy_bonus", *SMALL, both, *bonus, *held, "training.minibatches=2", *more)

    records, whole, _ = resumed_exactly(build, config, tmp_path / "checkpoints", before=2, after=2)
    assert [record["entropy_bonus/coefficient"] for record in records] == pytest.approx([0.0, 0.05, 0.1, 0.15])
    assert all(record["covariance/tokens"] > 0 for record in records)
    assert whole.active[0].coefficient == pytest.approx(0.2)


def test_a_bonus_keeps_the_policy_from_becoming_sure_of_itself(build):
    def entropies(coefficient):
        fixed = ("entropy_bonus.target=null", f"entropy_bonus.coefficient={coefficient}")
        records = steps(build(preset("entropy_bonus", *SMALL, "training.lr=2e-3", *fixed)), 4)
        in_loss = [record.get("loss/entropy", 0.0) for record in records]
        assert in_loss[0] == pytest.approx(-coefficient * records[0]["policy/entropy"], rel=0.1)
        return [record["policy/entropy"] for record in records]

    without, paid = entropies(0.0), entropies(1.0)
    assert paid[0] == pytest.approx(without[0], rel=1e-5)
    assert paid[-1] > without[-1] + 0.1
