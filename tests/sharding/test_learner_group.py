"""RLlib's learner group with shards: a training step, and a checkpoint that goes from two learners to one and back."""

import pytest

from algorithms.learner.batch import TrainingSample
from algorithms.learner.group import score_rows, update_learners
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.own_learners import policy_state

from .jobs import rows

pytestmark = pytest.mark.slow

LR = 1e-3


def weights(algorithm):
    return policy_state(algorithm.learner_group)[1]["default_policy"]


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def tiny_rows() -> list[TrainingSample]:
    """Few enough ids for the embedded model's vocabulary."""
    return [
        TrainingSample(row.tokens % 30, row.loss_mask, row.advantages, row.weight, None, row.sampling_logprobs)
        for row in rows()
    ]


def test_a_checkpoint_of_two_sharded_learners_is_one_learners_and_the_other_way_round(config, build, tmp_path):
    two = build(config.copy().learners(num_learners=2, sharding="fsdp", token_budget=64))
    one = build(config.copy())
    two.train()
    assert two.batch.record["policy/logp_mismatch_max"] < 1e-3  # the engine got whole weights
    saved = save_checkpoint(two, tmp_path / "of_two")
    load_checkpoint(one, saved)
    assert largest_difference(weights(one), weights(two)) == 0.0

    for algorithm in (one, two):
        update_learners(algorithm.learner_group, tiny_rows(), LR)
    assert largest_difference(weights(one), weights(two)) < 0.02 * LR
    for mine, others in zip(
        score_rows(one.learner_group, tiny_rows(), entropy=True),
        score_rows(two.learner_group, tiny_rows(), entropy=True),
        strict=True,
    ):
        assert abs(mine[0] - others[0]).max() < 1e-3 and abs(mine[1] - others[1]).max() < 1e-3

    saved = save_checkpoint(one, tmp_path / "of_one")
    update_learners(one.learner_group, tiny_rows(), LR)
    load_checkpoint(two, saved)
    update_learners(two.learner_group, tiny_rows(), LR)
    assert largest_difference(weights(one), weights(two)) < 0.02 * LR

    with pytest.raises(NotImplementedError, match="the run's checkpoints"):  # RLlib's own
        two.learner_group.get_state()


def test_two_learners_score_under_frozen_models_as_one_does(config, build):
    """A teacher in shards; the reference too, though there is no penalty."""
    config.training(mechanisms=["opd", "ace"], beta=0.0)
    two = build(config.copy().learners(num_learners=2, sharding="fsdp", token_budget=64))
    one = build(config.copy())
    for algorithm in (one, two):
        algorithm.train()  # the policy is no longer its reference
    scores = {}
    for under in ("policy", "reference", "teacher"):
        mine, others = (
            score_rows(algorithm.learner_group, tiny_rows(), entropy=False, under=under) for algorithm in (one, two)
        )
        assert max(abs(a - b).max() for (a, _), (b, _) in zip(mine, others, strict=True)) < 1e-3
        scores[under] = [logprobs for logprobs, _ in mine]
    for under in ("reference", "teacher"):
        pairs = zip(scores[under], scores["policy"], strict=True)
        assert max(abs(a - b).max() for a, b in pairs) > (1e-2 if under == "teacher" else 1e-5)
    for tag in ("opd/gap_size", "ace/factor"):
        assert one.batch.record[tag] == pytest.approx(two.batch.record[tag], rel=1e-2)
