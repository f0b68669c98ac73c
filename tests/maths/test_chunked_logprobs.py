import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.learner.chunked_logprobs import chunked_logprobs
from algorithms.losses.base import LossSettings
from tests.maths.losses import policy_loss

from .strategies import repeatable, seeds

N, D, V = 37, 8, 23


def inputs(seed=0, tokens=N, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, D, generator=generator).to(dtype)
    weight = torch.randn(V, D, generator=generator).to(dtype)
    bias = torch.randn(V, generator=generator).to(dtype)
    targets = torch.randint(V, (tokens,), generator=generator)
    return hidden, weight, bias, targets


def naive(hidden, weight, bias, targets, temperature=1.0, softcap=None):
    """All logits at once."""
    logits = functional.linear(hidden, weight, bias).float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs[torch.arange(len(targets)), targets], -(logprobs.exp() * logprobs).sum(-1)


@repeatable
@given(
    seeds,
    st.integers(0, N),
    st.integers(1, 50),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.booleans(),
    st.sampled_from([None, 2.0]),
)
def test_values_match_the_whole_logits_for_every_chunk_size(seed, tokens, chunk, temperature, biased, softcap):
    hidden, weight, bias, targets = inputs(seed, tokens)
    bias = bias if biased else None
    with torch.no_grad():
        logprobs, entropies = chunked_logprobs(
            hidden, weight, targets, temperature=temperature, chunk=chunk, bias=bias, softcap=softcap
        )
    expected, expected_entropies = naive(hidden, weight, bias, targets, temperature, softcap)
    assert logprobs.shape == entropies.shape == (tokens,)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=1e-5)
    assert (entropies >= 0).all() and (entropies <= math.log(V) + 1e-5).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("chunk", [1, 10, 64])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradients_match_the_whole_logits(dtype, tolerance, chunk, softcap):
    upstream = torch.randn(N, generator=torch.Generator().manual_seed(1))
    gradients = []
    for compute in ("naive", "chunked"):
        hidden, weight, bias, targets = inputs(4, dtype=dtype)
        leaves = [tensor.requires_grad_(True) for tensor in (hidden, weight, bias)]
        if compute == "naive":
            logprobs, _ = naive(hidden, weight, bias, targets, temperature=0.8, softcap=softcap)
        else:
            logprobs, _ = chunked_logprobs(
                hidden, weight, targets, temperature=0.8, chunk=chunk, bias=bias, softcap=softcap
            )
        assert logprobs.dtype == torch.float32
        (logprobs * upstream).sum().backward()
        gradients.append([leaf.grad for leaf in leaves] + [logprobs.detach()])
    for expected, found in zip(*gradients, strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(found, expected, atol=tolerance * scale, rtol=tolerance)


def test_float32_masters_meet_a_bfloat16_forward():
    hidden, weight, bias, targets = inputs(2)
    weight.requires_grad_(True)
    logprobs, entropies = chunked_logprobs(hidden.bfloat16(), weight, targets, bias=bias)
    logprobs.sum().backward()
    assert logprobs.dtype == entropies.dtype == weight.grad.dtype == torch.float32
    expected, _ = naive(hidden.bfloat16(), weight.bfloat16(), bias.bfloat16(), targets)
    torch.testing.assert_close(logprobs, expected)


def test_the_softmax_is_float32_in_a_bfloat16_forward():
    # 300 equal logits: bfloat16 has 8 bits, so a sum or a logarithm in it would be off in the third digit.
    hidden, weight = torch.zeros(1, D, dtype=torch.bfloat16), torch.zeros(300, D, dtype=torch.bfloat16)
    logprobs, entropies = chunked_logprobs(hidden, weight, torch.tensor([7]))
    assert logprobs.item() == pytest.approx(-math.log(300), abs=1e-5)
    assert entropies.item() == pytest.approx(math.log(300), abs=1e-5)


def test_autocast_is_the_same_in_the_recomputation():
    hidden, weight, _, targets = inputs(5)
    gradients = []
    for chunk in (5, N):
        leaf = weight.clone().requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs, _ = chunked_logprobs(hidden, leaf, targets, chunk=chunk)
        logprobs.sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, atol=0.1, rtol=0.05)


def test_impossible_tokens_leave_the_entropy_finite():
    hidden, weight, bias, targets = inputs()
    bias[3], targets[:] = -torch.inf, 4
    logprobs, entropies = chunked_logprobs(hidden, weight, targets, bias=bias)
    assert torch.isfinite(logprobs).all() and torch.isfinite(entropies).all()


def test_entropies_are_detached_and_left_out_on_request():
    hidden, weight, _, targets = inputs()
    weight.requires_grad_(True)
    logprobs, entropies = chunked_logprobs(hidden, weight, targets, chunk=10)
    assert logprobs.requires_grad and not entropies.requires_grad
    again, nothing = chunked_logprobs(hidden, weight, targets, chunk=10, entropy=False)
    assert nothing is None
    torch.testing.assert_close(again, logprobs, rtol=0, atol=0)


class Watch(TorchDispatchMode):
    """Records the size of every tensor that any operation puts out, and how often each operation runs."""

    def __init__(self):
        super().__init__()
        self.largest, self.calls = 0, Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls[function.name()] += 1
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("gradient", [True, False])
def test_no_tensor_is_ever_larger_than_a_chunk_of_logits(gradient):
    hidden, weight, _, targets = inputs(tokens=96)
    weight.requires_grad_(gradient)
    hidden.requires_grad_(gradient)
    chunk = 40
    with Watch() as watch, torch.set_grad_enabled(gradient):
        logprobs, _ = chunked_logprobs(hidden, weight, targets, temperature=0.7, softcap=5.0, chunk=chunk)
        if gradient:
            logprobs.sum().backward()
    # Inputs and their gradients are [96, 8] and [23, 8]: smaller than a chunk's [40, 23].
    assert watch.largest == chunk * V


def test_the_watch_sees_whole_logits_where_there_are_any():
    hidden, weight, bias, targets = inputs(tokens=96)
    with Watch() as watch:
        naive(hidden, weight, bias, targets)
    assert watch.largest == 96 * V


def test_between_forward_and_backward_no_logits_are_kept():
    hidden, weight, _, targets = inputs(tokens=96)
    weight.requires_grad_(True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        chunked_logprobs(hidden, weight, targets, chunk=40)
    assert max(kept, default=0) < 40 * V


def test_backward_recomputes_logits_but_not_entropies():
    hidden, weight, _, targets = inputs(tokens=96)
    weight.requires_grad_(True)
    with Watch() as watch:
        logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=40)
        logprobs.sum().backward()
    assert watch.calls["aten::_log_softmax"] == 6, "three chunks, twice"
    assert watch.calls["aten::special_entr"] == 3


def test_without_gradients_nothing_is_recomputed():
    hidden, weight, _, targets = inputs(tokens=96)
    with Watch() as watch:
        chunked_logprobs(hidden, weight, targets, chunk=40)
    assert watch.calls["aten::_log_softmax"] == 3


@repeatable
@given(seeds, st.integers(1, 50), st.integers(1, 50))
def test_an_unchanged_policy_gives_a_replay_ratio_of_one(seed, stored_chunk, training_chunk):
    hidden, weight, _, targets = inputs(seed)
    with torch.no_grad():
        stored, _ = chunked_logprobs(hidden, weight, targets, chunk=stored_chunk)
    weight.requires_grad_(True)
    logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=training_chunk, entropy=False)
    deviation = ((logprobs - stored).exp() - 1).abs().sum()
    assert deviation.item() <= (0.0 if stored_chunk == training_chunk else N * 1e-5)


def test_tokens_that_the_loss_leaves_out_get_exactly_no_gradient():
    hidden, weight, _, targets = inputs()
    hidden.requires_grad_(True)
    logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=10)
    policy_token = torch.arange(N) >= 20
    zeros = torch.zeros(N)
    loss, _ = policy_loss(
        logprobs, logprobs.detach(), zeros + 1.0, policy_token / 17, settings=LossSettings(), lengths=[len(zeros)]
    )
    loss.backward()
    assert (hidden.grad[:20] == 0).all() and (hidden.grad[20:] != 0).any()


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.0}, {"chunk": 0}, {"softcap": -1.0}, {"targets": torch.zeros(3, dtype=torch.long)}],
)
def test_refuses_bad_input(change):
    hidden, weight, _, targets = inputs()
    with pytest.raises(ValueError, match=r"expected hidden|must be positive"):
        chunked_logprobs(hidden, weight, **({"targets": targets} | change))
