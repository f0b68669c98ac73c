"""`chunked_logprobs_and_gradient` against all logits at once and autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from algorithms.learner.chunked_logprobs import (
    OutputHead,
    _distribution,
    chunked_logprobs,
    chunked_logprobs_and_gradient,
)

from .strategies import repeatable, seeds
from .test_chunked_logprobs import N, V, Watch, inputs, naive


def per_token_loss(logprobs, rows=None):
    """Curved, and another for every token, so that a slope at the wrong log-prob or place shows."""
    rows = rows or slice(0, len(logprobs))
    return torch.linspace(-1.0, 1.0, N)[rows] * (0.3 * logprobs).exp()


def slope(logprobs, entropies, rows):
    return (per_token_loss(logprobs, rows) * 0.3,)


def gradients_of(compute, tensors, **options):
    """Statistics and the gradients of hidden, weight and bias."""
    hidden, weight, bias, targets = tensors
    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in (hidden, weight, bias)]
    if compute == "naive":
        options.pop("chunk")
        logprobs, entropies = naive(*leaves, targets, **options)
        injected = per_token_loss(logprobs).sum()
    else:
        logprobs, entropies, injected = chunked_logprobs_and_gradient(
            leaves[0], leaves[1], targets, slope, bias=leaves[2], **options
        )
    injected.backward()
    return [logprobs.detach(), entropies.detach()], [leaf.grad for leaf in leaves]


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one, other, atol=tolerance * scale, rtol=tolerance)


@repeatable
@given(
    seeds,
    st.integers(0, N),
    st.integers(1, 50),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.sampled_from([None, 2.0]),
)
def test_values_and_gradients_match_the_whole_logits(seed, tokens, chunk, temperature, softcap):
    tensors = inputs(seed, tokens)
    options = {"temperature": temperature, "softcap": softcap, "chunk": chunk}
    statistics, gradients = gradients_of("chunked", tensors, **options)
    expected_statistics, expected = gradients_of("naive", tensors, **options)
    assert_close(statistics, expected_statistics, 1e-5)
    assert_close(gradients, expected, 1e-5)


@pytest.mark.parametrize("chunk", [1, 10, 64])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradients_in_bfloat16_match_the_whole_logits(chunk, softcap):
    tensors = inputs(4, dtype=torch.bfloat16)
    options = {"temperature": 0.8, "softcap": softcap, "chunk": chunk}
    statistics, gradients = gradients_of("chunked", tensors, **options)
    expected_statistics, expected = gradients_of("naive", tensors, **options)
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16] * 3
    assert_close(statistics, expected_statistics, 1e-4)
    assert_close(gradients, expected, 2e-2)


def test_a_weight_gradient_is_summed_over_chunks_in_float32():
    # 512 tokens whose gradients are alike: a bfloat16 sum of single tokens would stop growing at 256 of them.
    hidden = torch.ones(512, 8).bfloat16()
    weight = torch.zeros(V, 8, requires_grad=True)
    targets = torch.zeros(512, dtype=torch.long)
    *_, injected = chunked_logprobs_and_gradient(
        hidden, weight, targets, lambda own, *_: (torch.ones_like(own),), chunk=1
    )
    injected.backward()
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad[0], torch.full((8,), 512 * (1 - 1 / V)), rtol=5e-3, atol=0)


def test_under_autocast_the_products_are_bfloat16_and_masters_get_float32():
    hidden, weight, bias, targets = inputs(5)
    found = []
    for cast in (True, False):
        leaf = weight.clone().requires_grad_(True)
        states = hidden if cast else hidden.bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            own, _, injected = chunked_logprobs_and_gradient(states, leaf, targets, slope, bias=bias, chunk=10)
            injected.backward()
        assert leaf.grad.dtype == torch.float32
        found.append((own, leaf.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("trained", [{"hidden"}, {"weight"}, {"bias"}, {"hidden", "weight", "bias"}, set()])
def test_only_inputs_that_are_trained_get_a_gradient(trained):
    hidden, weight, bias, targets = inputs()
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}
    _, expected = gradients_of("naive", (hidden, weight, bias, targets), chunk=10)
    for name in trained:
        leaves[name].requires_grad_(True)
    own, entropies, injected = chunked_logprobs_and_gradient(hidden, weight, targets, slope, bias=bias, chunk=10)
    assert not own.requires_grad and not entropies.requires_grad and injected.item() == 0.0
    assert injected.requires_grad == bool(trained)
    if trained:
        injected.backward()
    for (name, leaf), gradient in zip(leaves.items(), expected, strict=True):
        if name in trained:
            assert_close([leaf.grad], [gradient], 1e-5)
        else:
            assert leaf.grad is None


def test_a_tied_embedding_gets_both_its_gradients():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(V, 8)

    generator = torch.Generator().manual_seed(0)
    inputs_, targets = torch.randint(V, (2, N), generator=generator)
    found = []
    for chunked in (True, False):
        torch.manual_seed(3)
        tied = Tied()
        hidden = tied.embedding(inputs_).tanh()
        if chunked:
            *_, injected = chunked_logprobs_and_gradient(hidden, tied.embedding.weight, targets, slope, chunk=7)
        else:
            injected = per_token_loss(naive(hidden, tied.embedding.weight, None, targets)[0]).sum()
        injected.backward()
        found.append(tied.embedding.weight.grad)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_a_scaled_loss_scales_the_gradient():
    hidden, weight, _, targets = inputs()
    found = []
    for scale in (1.0, 8.0):
        leaf = weight.clone().requires_grad_(True)
        *_, injected = chunked_logprobs_and_gradient(hidden, leaf, targets, slope)
        (injected * scale).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[0] * 8.0, found[1])


def test_the_log_probs_are_those_of_the_scoring_pass_to_the_bit():
    hidden, weight, bias, targets = inputs()
    with torch.no_grad():
        stored, _ = chunked_logprobs(hidden, weight, targets, temperature=0.7, chunk=10, bias=bias)
    weight.requires_grad_(True)
    own, _, _ = chunked_logprobs_and_gradient(hidden, weight, targets, slope, temperature=0.7, chunk=10, bias=bias)
    torch.testing.assert_close(own, stored, rtol=0, atol=0)


def test_tokens_without_slope_get_exactly_no_gradient():
    hidden, weight, _, targets = inputs()
    hidden.requires_grad_(True)
    *_, injected = chunked_logprobs_and_gradient(
        hidden, weight, targets, lambda own, _, rows: ((torch.arange(N)[rows] >= 20).float(),), chunk=16
    )
    injected.backward()
    assert (hidden.grad[:20] == 0).all() and (hidden.grad[20:] != 0).any(dim=-1).all()


def test_entropies_are_left_out_on_request():
    hidden, weight, _, targets = inputs()
    weight.requires_grad_(True)
    operations = []
    for entropy in (True, False):
        with Watch() as watch:
            _, entropies, _ = chunked_logprobs_and_gradient(hidden, weight, targets, slope, entropy=entropy)
        operations.append(watch.calls.total())
    assert entropies is None and operations[1] < operations[0]


def test_logits_are_computed_once_and_a_chunk_at_a_time():
    hidden, weight, _, targets = inputs(tokens=96)
    for tensor in (hidden, weight):
        tensor.requires_grad_(True)
    with Watch() as watch:
        *_, injected = chunked_logprobs_and_gradient(hidden, weight, targets, lambda own, *_: (own,), chunk=40)
        injected.backward()
    products = {name: n for name, n in watch.calls.items() if name in ("aten::mm", "aten::addmm_", "aten::addmm")}
    assert sum(products.values()) == 3 * 3, "three chunks: logits, gradient of hidden, gradient of weight"
    assert watch.largest == 40 * V


def test_backward_a_second_time_is_refused():
    hidden, weight, _, targets = inputs()
    weight.requires_grad_(True)
    *_, injected = chunked_logprobs_and_gradient(hidden, weight, targets, slope)
    injected.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        injected.backward()


def test_refuses_a_slope_of_another_shape():
    hidden, weight, _, targets = inputs()
    weight.requires_grad_(True)
    with pytest.raises(ValueError, match="slope gave shape"):
        chunked_logprobs_and_gradient(hidden, weight, targets, lambda own, *_: (own[:, None],))


def test_what_becomes_of_a_chunk_of_logits_compiles_as_one_graph():
    hidden, weight, bias, targets = inputs()
    head = OutputHead(weight, bias, 0.7, None)

    def statistics(states, tokens):
        return _distribution(head.logits(states), tokens, True)

    compiled = torch.compile(statistics, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for found, expected in zip(compiled(hidden, targets), statistics(hidden, targets), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_on_a_gpu_gradients_are_those_of_the_whole_logits():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(700, 64, generator=generator), torch.randn(40_000, 64, generator=generator) / 8
    targets = torch.randint(len(weight), (len(hidden),), generator=generator).cuda()
    gradients = []
    for chunk in (64, len(hidden)):
        leaves = [tensor.cuda().requires_grad_(True) for tensor in (hidden, weight)]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            *_, injected = chunked_logprobs_and_gradient(*leaves, targets, lambda own, *_: (own,), chunk=chunk)
            injected.backward()
        gradients.append([leaf.grad for leaf in leaves])
    leaves = [tensor.cuda().requires_grad_(True) for tensor in (hidden, weight)]
    logprobs, _ = naive(*(leaf.bfloat16() for leaf in leaves), None, targets)
    (0.5 * logprobs.square()).sum().backward()
    for found in gradients:
        assert_close(found, [leaf.grad for leaf in leaves], 2e-2)
