"""What is applied to the product of the output head, in values and in both gradients."""

import pytest
import torch
from torch.nn import functional

from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_gradient

from .test_chunked_logprobs import N, inputs


def whole(hidden, weight, bias, targets, scale, softcap):
    """All logits at once, as a model's own forward has them, through autograd."""
    logits = scale * functional.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return (logits / 0.7).log_softmax(-1)[torch.arange(len(targets)), targets]


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("scale", [0.25, 4.0])
@pytest.mark.parametrize("way", ["recomputed", "injected"])
def test_a_scale_before_the_cap_reaches_values_and_gradients(way, scale, softcap):
    results = []
    for compute in ("whole", way):
        hidden, weight, bias, targets = inputs(3)
        leaves = [tensor.requires_grad_(True) for tensor in (hidden, weight, bias)]
        given = {"temperature": 0.7, "bias": bias, "softcap": softcap, "scale": scale, "chunk": 10}
        if compute == "whole":
            logprobs = whole(*leaves, targets, scale, softcap)
            (-logprobs.sum()).backward()
        elif compute == "recomputed":
            logprobs, _ = chunked_logprobs(hidden, weight, targets, **given)
            (-logprobs.sum()).backward()
        else:
            logprobs, _, loss = chunked_logprobs_and_gradient(
                hidden, weight, targets, lambda own, *_: (-torch.ones_like(own),), **given
            )
            loss.backward()
        results.append([logprobs.detach(), *(leaf.grad for leaf in leaves)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_float32_head_is_not_rounded_in_a_bfloat16_forward():
    hidden, weight, bias, targets = inputs(1)
    exact = whole(hidden, weight, bias, targets, 1.0, None)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        given = {"temperature": 0.7, "bias": bias}
        found, _ = chunked_logprobs(hidden, weight, targets, **given, float32=True)
        rounded, _ = chunked_logprobs(hidden, weight, targets, **given)
        slope, _, _ = chunked_logprobs_and_gradient(
            hidden, weight, targets, lambda own, *_: (own,), **given, float32=True
        )
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slope, exact, atol=1e-5, rtol=1e-5)
    assert (rounded - exact).abs().max() > 1e-3 and len(rounded) == N


def test_a_scale_that_is_not_positive_is_refused():
    hidden, weight, _, targets = inputs()
    with pytest.raises(ValueError, match="scale must be positive"):
        chunked_logprobs(hidden, weight, targets, scale=0.0)
