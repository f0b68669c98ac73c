"""Two and four learners, with replicas or with shards, compute what one learner computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from .jobs import (
    Setting,
    clipped,
    compute_types,
    elements_held,
    gradients,
    gradients_of_groups,
    gradients_without_advantage,
    load_and_train,
    norm_with_one_infinity,
    scores,
    steps,
    train_and_save,
)

SHARDS = Setting(sharded=True)
OFFLOADED = replace(SHARDS, offload=True)


def largest_error(found, expected):
    """Over all tensors, as a share of the largest value anywhere."""
    assert found.keys() == expected.keys()
    scale = max(np.abs(value).max() for value in expected.values())
    return max(np.abs(found[name] - expected[name]).max() for name in expected) / scale


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_gradients_are_one_learners(group, learners, tied, sharded):
    expected = gradients(0, Setting(tied=tied))
    for found in group.run(learners, gradients, Setting(tied=tied, sharded=sharded)):
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_groups_with_shared_prompts_have_one_learners_gradients_too(group, learners, sharded):
    every_row, expected = gradients_of_groups(0, Setting())
    found = group.run(learners, gradients_of_groups, Setting(share_prompts=True, sharded=sharded))
    assert sorted(row for rows, _ in found for row in rows) == every_row == list(range(24))
    for _, each in found:
        assert largest_error(each, expected) < 1e-5
    held = [{0 if row >= 16 else row % 4 for row in rows} for rows, _ in found]
    # Groups are whole on two learners; the large one would leave two of four learners with little to do.
    assert (sum(map(len, held)) == 4) == (learners == 2)


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_learners_without_rows_take_part(group, sharded):
    expected = gradients(0, Setting(), 2)
    for found in group.run(4, gradients, Setting(sharded=sharded), 2):
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_advantages_of_tokens_give_one_learners_gradients(group, sharded):
    expected = gradients(0, Setting(), 11, "token")
    assert largest_error(gradients(0, Setting()), expected) > 1e-2
    for found in group.run(2, gradients, Setting(sharded=sharded), 11, "token"):
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_a_scalar_advantage_and_its_broadcast_are_exactly_the_same_on_learners(group, sharded):
    expected = group.run(2, gradients, Setting(sharded=sharded))
    for found, scalar in zip(group.run(2, gradients, Setting(sharded=sharded), 11, "broadcast"), expected, strict=True):
        assert largest_error(found, scalar) == 0.0


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_rows_without_advantage_leave_no_gradient_to_step_on(group, sharded):
    assert gradients_without_advantage(0, Setting()) == {}
    assert group.run(2, gradients_without_advantage, Setting(sharded=sharded)) == [{}, {}]


@pytest.mark.parametrize(
    "setting",
    [
        replace(SHARDS, checkpointing=True),
        OFFLOADED,
        replace(SHARDS, beta=0.1),
        replace(SHARDS, lora_rank=4),
        replace(SHARDS, lora_rank=4, beta=0.1),
        replace(SHARDS, lora_rank=4, checkpointing=True),
        Setting(lora_rank=4, beta=0.1),
    ],
    ids=["checkpointing", "offload", "kl", "lora", "lora_kl", "lora_checkpointing", "lora_kl_replicas"],
)
def test_gradients_are_one_learners_whatever_else_is_on(group, setting):
    expected = gradients(0, replace(setting, sharded=False, offload=False, checkpointing=False))
    for found in group.run(2, gradients, setting):
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_shards_are_clipped_by_the_norm_of_the_whole_gradient(group, limit):
    norm, expected = clipped(0, Setting(), limit)
    for found_norm, found in group.run(2, clipped, SHARDS, limit):
        assert found_norm == pytest.approx(norm, rel=1e-5)
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "shards"])
def test_every_learner_hears_of_a_gradient_that_is_not_finite(group, sharded):
    norms = group.run(2, norm_with_one_infinity, Setting(sharded=sharded))
    assert not np.isfinite(norms[0])
    if sharded:
        assert not np.isfinite(norms[1])


def test_a_learner_holds_its_share_and_no_more(group):
    (weights, moments, _) = elements_held(0, Setting())
    held = group.run(4, elements_held, SHARDS)
    assert sum(part[0] for part in held) == weights
    assert sum(part[1] for part in held) == moments
    assert max(part[0] for part in held) < 0.3 * weights


def test_shards_are_gathered_in_the_compute_dtype_and_stepped_in_float32(group):
    bfloat16 = replace(SHARDS, dtype=torch.bfloat16)
    for hidden, head, gradient in group.run(2, compute_types, bfloat16):
        assert (hidden, head, gradient) == ("torch.bfloat16", "torch.bfloat16", "torch.float32")
    for _, _, types in group.run(2, elements_held, bfloat16):
        assert types == {"torch.float32"}


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_gradients_of_a_bfloat16_forward_are_those_of_float32_to_its_precision(group, lora_rank):
    expected = gradients(0, Setting(lora_rank=lora_rank))
    for found in group.run(2, gradients, replace(SHARDS, lora_rank=lora_rank, dtype=torch.bfloat16)):
        off = np.sqrt(sum(np.square(found[name] - expected[name]).sum() for name in expected))
        size = np.sqrt(sum(np.square(value).sum() for value in expected.values()))
        assert 1e-4 < off / size < 0.05


@pytest.mark.parametrize("setting", [SHARDS, OFFLOADED], ids=["shards", "offload"])
@pytest.mark.parametrize("learners", [1, 2])
def test_steps_are_one_learners(group, learners, setting):
    norms, expected = steps(0, Setting(), 3)
    for found_norms, found in group.run(learners, steps, setting, 3):
        assert found_norms == pytest.approx(norms, rel=1e-4)
        assert largest_error(found, expected) < 1e-5


@pytest.mark.parametrize("count", [1, 11])
def test_scores_are_one_learners(group, count):
    expected = scores(0, Setting(), count)
    found = group.run(2, scores, SHARDS, count)
    for rank, part in enumerate(found):
        for mine, theirs in zip(part, expected[rank::2], strict=True):
            np.testing.assert_allclose(mine[0], theirs[0], atol=1e-5)
            np.testing.assert_allclose(mine[1], theirs[1], atol=1e-5)


ONE, REPLICAS = (1, Setting()), (2, Setting())
TWO_SHARDS, FOUR_SHARDS = (2, SHARDS), (4, SHARDS)
ADAPTED, ADAPTED_SHARDS = (1, Setting(lora_rank=4)), (2, replace(SHARDS, lora_rank=4))


@pytest.mark.parametrize(
    ("writers", "readers"),
    [
        (TWO_SHARDS, ONE),
        (ONE, TWO_SHARDS),
        (REPLICAS, ONE),
        (FOUR_SHARDS, REPLICAS),
        ((2, OFFLOADED), (4, OFFLOADED)),
        (ADAPTED_SHARDS, ADAPTED),
        (ADAPTED, ADAPTED_SHARDS),
    ],
    ids=[
        "shards_to_one",
        "one_to_shards",
        "replicas_to_one",
        "four_to_two",
        "offloaded",
        "lora_shards_to_one",
        "lora_one_to_shards",
    ],
)
def test_a_checkpoint_goes_from_any_number_of_learners_to_any(group, tmp_path, writers, readers):
    expected, *_ = group.run(writers[0], train_and_save, writers[1], tmp_path)
    for found in group.run(readers[0], load_and_train, readers[1], tmp_path):
        assert largest_error(found, expected) < 1e-5
