"""One update's loss and gradient: GRPO as plain PyTorch computes it, however the rows are cut up."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import training_samples
from algorithms.learner.attention import is_packed, use_packed_attention
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings, LossTerm
from algorithms.losses.term import term
from algorithms.models.causal_lm import recomputes

from .conftest import RESPONSE_LIMIT, small_model
from .recomputation import recompute, relative_error

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def rows_of(groups, loss_aggregation="token", **training):
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    return training_samples(samples, TrainingSettings(loss_aggregation=loss_aggregation, **training), RESPONSE_LIMIT)


def gradient_of(lm, rows, *, forward=None, loss=None, reference=None):
    lm.zero_grad(set_to_none=True)
    statistics = accumulate_gradients(lm, rows, forward or ForwardSettings(), loss or LossSettings(), reference)
    gradients = {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}
    lm.zero_grad(set_to_none=True)
    return statistics, gradients


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("importance_cap", [0.0, 1.2])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_aggregation", ["token", "response", "constant"])
def test_loss_and_gradient_are_those_of_a_plain_recomputation(
    lm, reference, groups, loss_aggregation, beta, importance_cap, temperature
):
    expected = recompute(
        lm,
        groups,
        loss_aggregation=loss_aggregation,
        max_response_tokens=RESPONSE_LIMIT,
        importance_cap=importance_cap,
        beta=beta,
        reference=reference,
        temperature=temperature,
        **CLIP,
    )
    statistics, gradients = gradient_of(
        lm,
        rows_of(groups, loss_aggregation, beta=beta),
        forward=ForwardSettings(temperature=temperature, token_budget=70),
        loss=LossSettings(**CLIP, importance_cap=importance_cap),
        reference=reference,
    )
    assert expected.clipped > 0 and (expected.replayed_clipped > 0 or temperature < 1)
    assert (statistics.clipped, statistics.replayed_clipped) == (expected.clipped, expected.replayed_clipped)
    assert statistics.max_replayed_ratio == pytest.approx(expected.max_replayed_ratio, rel=1e-4)
    assert statistics.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    assert statistics.terms.get("loss/kl", 0.0) == pytest.approx(beta * expected.kl, rel=1e-4, abs=1e-6)
    assert relative_error(gradients, expected.gradients) < 1e-4


def test_rows_without_stored_log_probs_are_on_the_spot(lm, groups):
    for group in groups:
        for sample in group.samples:
            sample.old_logprobs, sample.replayed = None, False
    expected = recompute(lm, groups, loss_aggregation="token", max_response_tokens=RESPONSE_LIMIT, **CLIP)
    statistics, gradients = gradient_of(lm, rows_of(groups), loss=LossSettings(**CLIP, importance_cap=0.0))
    assert expected.clipped == statistics.clipped == statistics.max_ratio_deviation == 0
    assert relative_error(gradients, expected.gradients) < 1e-4


def test_an_untied_head_gets_its_gradient_too(groups):
    lm = small_model(seed=2, tied=False)
    expected = recompute(lm, groups, loss_aggregation="token", max_response_tokens=RESPONSE_LIMIT, **CLIP)
    _, gradients = gradient_of(lm, rows_of(groups), loss=LossSettings(**CLIP, importance_cap=0.0))
    assert "lm_head.weight" in gradients
    assert relative_error(gradients, expected.gradients) < 1e-4


@pytest.mark.parametrize("token_budget", [1, 40, 64, 10**6])
def test_how_rows_are_cut_into_micro_batches_does_not_matter(lm, reference, groups, token_budget):
    rows = rows_of(groups, beta=0.1)
    expected, whole = gradient_of(lm, rows, reference=reference)
    found, cut = gradient_of(lm, rows, forward=ForwardSettings(token_budget=token_budget), reference=reference)
    assert relative_error(cut, whole) < 1e-5
    for name in ("loss", "tokens", "clipped", "terms", "max_logp_mismatch", "max_ratio_deviation"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-6)


def test_gradients_of_two_shares_of_the_rows_add_up(lm, groups):
    rows = rows_of(groups)
    _, whole = gradient_of(lm, rows)
    _, first = gradient_of(lm, rows[:3])
    _, second = gradient_of(lm, rows[3:])
    assert relative_error({name: first[name] + second[name] for name in whole}, whole) < 1e-5


def test_only_positions_that_predict_the_policys_own_tokens_get_gradient(lm, groups):
    captured = []

    def keep(module, arguments, output):
        output.last_hidden_state.retain_grad()
        captured.append(output.last_hidden_state)

    rows = [replace(row, old_logprobs=None) for row in rows_of(groups) if row.advantages != 0]
    hook = lm.get_decoder().register_forward_hook(keep)
    for row in rows:
        gradient_of(lm, [row])
    hook.remove()
    assert len(captured) == len(rows)
    for row, hidden in zip(rows, captured, strict=True):
        touched = hidden.grad[0].abs().sum(-1) > 0
        predicts_own = torch.from_numpy(np.append(row.loss_mask[1:], False))
        assert torch.equal(touched, predicts_own)
    assert any(row.loss_mask.argmax() == 25 for row in rows)  # the quoted attempt


def test_padding_gets_no_gradient_and_changes_none(lm, groups):
    captured = []

    def keep(module, arguments, output):
        output.last_hidden_state.retain_grad()
        captured.append(output.last_hidden_state)

    rows = [replace(row, old_logprobs=None) for row in rows_of(groups) if row.advantages != 0]
    hook = lm.get_decoder().register_forward_hook(keep)
    gradient_of(lm, rows)
    hook.remove()
    (hidden,) = captured
    touched = hidden.grad.abs().sum(-1) > 0
    assert int(touched.sum()) == sum(row.response_length for row in rows)
    if is_packed(lm):
        assert touched.shape == (1, sum(len(row.tokens) for row in rows))
    else:
        assert sorted(touched.sum(-1).tolist()) == sorted(row.response_length for row in rows)


def test_a_reference_must_take_the_policys_batches(groups):
    other = small_model(seed=1)
    use_packed_attention(other)
    with pytest.raises(ValueError, match="same batches"):
        gradient_of(small_model(), rows_of(groups), reference=other)


def test_rows_without_advantage_change_nothing_but_the_normalizer(lm, groups):
    rows = rows_of(groups)
    silent = [row for row in rows if row.advantages == 0]
    assert silent
    with_them, whole = gradient_of(lm, rows)
    without, rest = gradient_of(lm, [row for row in rows if row.advantages != 0])
    assert relative_error(rest, whole) < 1e-6
    assert with_them.tokens == without.tokens + sum(row.response_length for row in silent)
    assert with_them.trained_tokens == without.trained_tokens == without.tokens

    for group in groups:
        group.samples = [sample for sample in group.samples if sample.advantage != 0]
    _, renormalized = gradient_of(lm, rows_of(groups))
    factor = with_them.tokens / without.tokens
    assert relative_error({name: value * factor for name, value in whole.items()}, renormalized) < 1e-5


def test_a_kl_term_pulls_rows_without_advantage_as_well(lm, reference, groups):
    silent = [row for row in rows_of(groups, beta=0.5) if row.advantages == 0 and row.on_policy]
    statistics, gradients = gradient_of(lm, silent, reference=reference)
    assert statistics.terms["value/kl"] > 0 and statistics.trained_tokens == statistics.tokens
    assert any(bool(gradient.abs().max() > 0) for gradient in gradients.values())


def test_a_model_that_cannot_recompute_says_so_and_keeps_its_activations(lm, monkeypatch, caplog):
    assert recomputes(lm, True) and not recomputes(lm, False)
    monkeypatch.setattr(type(lm), "supports_gradient_checkpointing", False)
    assert not recomputes(lm, True)
    assert "cannot recompute activations and keeps them" in caplog.text


def test_gradient_checkpointing_changes_no_gradient(lm, groups):
    _, plain = gradient_of(lm, rows_of(groups))
    lm.train()
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, checkpointed = gradient_of(lm, rows_of(groups))
    assert relative_error(checkpointed, plain) < 1e-6


def test_bfloat16_computes_low_and_accumulates_in_float32(lm, groups):
    dtypes = []
    hook = lm.get_decoder().layers[0].mlp.register_forward_hook(lambda *args: dtypes.append(args[-1].dtype))
    _, exact = gradient_of(lm, rows_of(groups), loss=LossSettings(importance_cap=0.0))
    forward = ForwardSettings(dtype="bfloat16")
    statistics, low = gradient_of(lm, rows_of(groups), forward=forward, loss=LossSettings(importance_cap=0.0))
    hook.remove()
    assert set(dtypes) == {torch.float32, torch.bfloat16}
    assert all(value.dtype == torch.float32 for value in low.values())
    assert all(parameter.dtype == torch.float32 for parameter in lm.parameters())
    assert np.isfinite(statistics.loss)
    assert 0 < relative_error(low, exact) < 0.15


def test_a_row_without_gradient_is_passed_once_to_be_measured_and_never_again(lm, groups):
    scored = rows_of(groups)
    fresh = [replace(row, old_logprobs=None) if row.on_policy else row for row in scored]
    silent = [index for index, row in enumerate(scored) if row.advantages == 0]
    assert silent and all(scored[index].on_policy for index in silent)
    passed = {}
    for name, rows in (("scored", scored), ("fresh", fresh)):
        statistics, _ = gradient_of(lm, rows)
        passed[name] = statistics.passed_tokens
        assert statistics.slots >= statistics.passed_tokens and (
            statistics.slots == statistics.passed_tokens or not is_packed(lm)
        )
    assert passed["fresh"] == sum(len(row.tokens) for row in scored)
    assert passed["scored"] == passed["fresh"] - sum(len(scored[index].tokens) for index in silent)


@pytest.mark.parametrize("token_budget", [40, 10**6])
def test_an_update_measures_fresh_rows_as_a_scoring_pass_would(lm, groups, token_budget):
    rows = [replace(row, old_logprobs=None) if row.on_policy else row for row in rows_of(groups)]
    forward = ForwardSettings(token_budget=token_budget, temperature=0.8)
    statistics, _ = gradient_of(lm, rows, forward=forward)
    fresh = [index for index, row in enumerate(rows) if row.on_policy]
    assert sorted(statistics.old_logprobs) == fresh and len(fresh) < len(rows)
    expected = score(lm, [rows[index] for index in fresh], forward, entropy=True)
    assert sorted(statistics.entropies) == fresh
    for index, (logprobs, entropies) in zip(fresh, expected, strict=True):
        np.testing.assert_allclose(statistics.old_logprobs[index], logprobs, atol=1e-5)
        np.testing.assert_allclose(statistics.entropies[index], entropies, atol=1e-5)
    gaps = [
        np.abs(rows[index].sampling_logprobs - logprobs).max()
        for index, (logprobs, _) in zip(fresh, expected, strict=True)
    ]
    assert statistics.max_logp_mismatch == pytest.approx(max(gaps), rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio_level": "sequence"},
        {"importance_level": "sequence", "importance_mode": "mask"},
        {"importance_level": "geometric"},
        {"objective": "gmpo"},
    ],
)
def test_losses_of_whole_responses_do_not_depend_on_micro_batches_either(lm, groups, settings):
    loss = LossSettings(**settings)
    assert not loss.token_local
    _, whole = gradient_of(lm, rows_of(groups), loss=loss)
    _, cut = gradient_of(lm, rows_of(groups), forward=ForwardSettings(token_budget=40), loss=loss)
    assert relative_error(cut, whole) < 1e-5


def test_the_gradient_in_chunks_is_the_one_through_all_tokens(lm, groups, monkeypatch):
    for settings in (
        {},
        {"objective": "cispo"},
        {"dual_clip": 2.0},
        {"objective": "sapo"},
        {"objective": "dppo", "objective_options": {"divergence": "kl"}},
        {"importance_mode": "mask", "importance_cap": 1.3, "importance_floor": 0.5},
    ):
        loss = LossSettings(**settings)
        assert loss.token_local
        found, chunked = gradient_of(lm, rows_of(groups), loss=loss)
        with monkeypatch.context() as patch:
            patch.setattr(LossSettings, "token_local", False)
            expected, through_all = gradient_of(lm, rows_of(groups), loss=loss)
        assert relative_error(chunked, through_all) < 1e-5
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def per_token(rows, seed=4):
    """The rows with advantages that differ from token to token; some are 0."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=row.response_length).astype(np.float32) * (rng.random() < 0.8) for row in rows]
    return [replace(row, advantages=advantages) for row, advantages in zip(rows, values, strict=True)]


@pytest.mark.parametrize("settings", [{}, {"objective": "cispo"}, {"objective": "gmpo"}, {"ratio_level": "sequence"}])
@pytest.mark.parametrize("token_budget", [40, 10**6])
def test_a_scalar_advantage_and_its_broadcast_are_exactly_the_same(lm, reference, groups, token_budget, settings):
    scalars = rows_of(groups, beta=0.1)
    arrays = [replace(row, advantages=np.full(row.response_length, row.advantages, np.float32)) for row in scalars]
    arguments = {
        "forward": ForwardSettings(token_budget=token_budget),
        "loss": LossSettings(**settings),
        "reference": reference,
    }
    expected, gradients = gradient_of(lm, scalars, **arguments)
    found, same = gradient_of(lm, arrays, **arguments)
    assert found.loss == expected.loss and found.trained_tokens == expected.trained_tokens
    assert all(torch.equal(same[name], gradients[name]) for name in gradients)


@pytest.mark.parametrize("token_budget", [40, 10**6])
def test_advantages_of_tokens_give_the_sum_of_the_tokens_losses(lm, groups, token_budget):
    rows = per_token(rows_of(groups))
    statistics, gradients = gradient_of(lm, rows, forward=ForwardSettings(token_budget=token_budget))
    loss, summed = 0.0, {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
    for row in rows:
        for token in np.flatnonzero(row.advantages):
            alone = np.where(np.arange(row.response_length) == token, row.advantages, np.float32(0))
            part, gradient = gradient_of(lm, [replace(row, advantages=alone)])
            loss += part.loss
            summed = {name: summed[name] + gradient[name] for name in summed}
    assert statistics.loss == pytest.approx(loss, rel=1e-4)
    assert relative_error(gradients, summed) < 1e-5


def test_a_row_has_a_gradient_when_any_of_its_tokens_has_an_advantage(lm, groups):
    (row, *_) = rows_of(groups)
    one = np.zeros(row.response_length, np.float32)
    assert not replace(row, advantages=one).has_gradient
    one[-1] = -0.5
    assert replace(row, advantages=one).has_gradient
    assert gradient_of(lm, [replace(row, advantages=one)])[0].trained_tokens == row.response_length


@pytest.mark.parametrize("name", ["advantages", "old_logprobs"])
def test_values_that_do_not_fit_the_row_are_refused(lm, groups, name):
    (row, *_) = rows_of(groups)
    for values in (np.ones(row.response_length + 1, np.float32), np.ones((row.response_length, 1), np.float32)):
        with pytest.raises(ValueError, match=f"expected {row.response_length} values"):
            gradient_of(lm, [replace(row, **{name: values})])


class Aimed(LossTerm):
    """A term that reads what few rows carry, and entropies without bending with them."""

    def token_loss(self, logprobs: torch.Tensor, entropies: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (logprobs - targets) ** 2 * entropies.detach()


@pytest.mark.parametrize("named", [{term("entropy"): 0.1}, {}, {term(f"{__name__}:Aimed"): 0.5}])
def test_rows_of_any_terms_train_however_they_are_cut(lm, groups, named):
    rows = [replace(row, terms=named) for row in rows_of(groups)]
    rows[0] = replace(rows[0], inputs={"targets": np.full(rows[0].response_length, -1.0, np.float32)})
    cut, whole = (gradient_of(lm, rows, forward=ForwardSettings(token_budget=size))[1] for size in (30, 10_000))
    assert relative_error(cut, whole) < 1e-4 if named else not any(gradient.any() for gradient in whole.values())
