"""`training.mask_truncated`: truncated responses leave the loss and stay in the baseline."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.grpo.built_in import TruncationMask
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.grpo.samples import training_rows
from algorithms.grpo.types import StepBatch
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.r3_grpo.config import R3GRPOConfig
from tests.hand_made import small_pool

from .conftest import RESPONSE_LIMIT, Stages, as_groups, hand_made, preset
from .test_formulas import clipped, gradients_of, of_formula, ratios, relative_error, rewards_of, standardized
from .test_whole_runs import SMALL, resumed_exactly


def is_truncated(response):
    return len(response.behavior) == RESPONSE_LIMIT


def masked_rows(groups, config):
    """The rows that GRPO's stages and the mask make of hand-made responses."""
    stages, batch = Stages(config), StepBatch(0, groups=as_groups(groups))
    stages.shape_rewards(batch)
    stages.compute_advantages(batch)
    mask = TruncationMask(None, SimpleNamespace())
    mask.before_update(batch)
    samples = [(index, sample) for index, group in enumerate(batch.groups) for sample in group.samples]
    (rows,) = training_rows([samples], config.training_settings, RESPONSE_LIMIT)
    return rows, mask.metrics["response/masked"]


def formula(lm, groups, aggregation):
    """TRL's: each response counts in its group's mean and deviation; masked tokens are 0 in sums and in divisors."""
    responses = [response for group in groups for response in group]
    advantages = np.concatenate([standardized(rewards_of(group)) for group in groups])
    total, kept = torch.zeros(()), 0
    for response, advantage in zip(responses, advantages, strict=True):
        if is_truncated(response):
            continue
        tokens = clipped(ratios(lm, response), float(advantage), 0.2, 0.28)
        total = total + (tokens.mean() if aggregation == "response" else tokens.sum())
        kept += len(tokens)
    return total / {"token": kept, "response": len(responses), "constant": len(responses) * RESPONSE_LIMIT}[aggregation]


@pytest.mark.parametrize("aggregation", ["token", "response", "constant"])
def test_the_loss_is_that_of_the_other_responses_under_the_whole_groups_advantages(lm, aggregation):
    groups = hand_made(lm, own=0.3, shared=0.0)
    assert 0 < sum(map(is_truncated, groups[0])) < len(groups[0])
    small = ("training.beta=0", "training.clip_low=0.2", "training.clip_high=0.28", "training.importance_cap=0")
    config = preset("grpo", *small, f"training.loss_aggregation={aggregation}", "reward.length_bonus=0")
    loss, expected = of_formula(lm, lambda: formula(lm, groups, aggregation))
    rows, share = masked_rows(groups, config)
    lm.zero_grad(set_to_none=True)
    settings = LossSettings.of(config.training_settings)
    statistics = accumulate_gradients(lm, rows, ForwardSettings(token_budget=64), settings)
    assert relative_error(gradients_of(lm), expected) < 1e-3
    assert statistics.loss == pytest.approx(loss, rel=1e-3, abs=1e-6)
    kept = [len(response.behavior) for group in groups for response in group if not is_truncated(response)]
    assert statistics.tokens == sum(kept) and share == 1 / 8


def test_the_kl_penalty_leaves_them_out_as_well(lm, reference):
    groups = hand_made(lm, own=0.0, shared=0.0, fresh=True)
    config = preset("grpo", "training.beta=0.5")
    rows, _ = masked_rows(groups, config)
    masked = [row for row in rows if row.multiplicity == 0]
    settings = LossSettings.of(config.training_settings)
    statistics = accumulate_gradients(lm, masked, ForwardSettings(token_budget=64), settings, reference)
    assert len(masked) == 1 and not gradients_of(lm) and statistics.loss == statistics.terms.get("value/kl", 0.0) == 0
    assert len(statistics.old_logprobs[0]) == RESPONSE_LIMIT, "it is measured all the same, for metrics and history"


def test_where_every_response_is_truncated_nothing_is_trained(lm):
    groups = [
        [response for response in group if is_truncated(response)] for group in hand_made(lm, own=0.0, shared=0.0)
    ]
    rows, share = masked_rows(groups[:1], preset("grpo", "training.beta=0.1"))
    assert share == 1.0 and not any(row.has_gradient or row.weight for row in rows)


def test_replay_stores_and_counts_masked_responses_and_a_resumed_run_is_the_same(build, tmp_path):
    pool = f"environment.data={small_pool(tmp_path, 8)}"
    chosen = ("training.mask_truncated=true", "ranking.enabled=false", "training.beta=0")

    def config():
        return preset("grpo", *SMALL, pool, *chosen, "training.minibatches=2", config_class=R3GRPOConfig)

    records, whole, _ = resumed_exactly(build, config, tmp_path / "checkpoints")
    assert any(record["response/masked"] for record in records) and any(record["replay/added"] for record in records)
    samples = [sample for group in whole.batch.groups for sample in group.samples]
    assert [sample.masked for sample in samples] == [sample.rollout.truncated for sample in samples]
    assert all(sample.old_logprobs is not None for sample in samples)
    trained = sum(sample.rollout.response_length for sample in samples if np.any(sample.advantages))
    assert 0 < records[-1]["policy/trained_tokens"] < trained


def test_what_trains_on_truncated_responses_is_refused():
    ranked = R3GRPOConfig().training(mask_truncated=True)
    with pytest.raises(ConfigError, match=r"^training\.mask_truncated: .* ranking rewards; fix: ranking.enabled=false"):
        ranked.check_settings()
    ranked.ranking(enabled=False).check_settings()
    R3GRPOConfig().training(mask_truncated=True).ranking(
        scope="all", order="entropy", baseline="paper"
    ).check_settings()
    with pytest.raises(ConfigError, match=r"^training\.mask_truncated: .* rorecomp .*; fix: rorecomp.enabled=false"):
        GRPOConfig().training(mask_truncated=True, mechanisms=["rorecomp"]).check_settings()
