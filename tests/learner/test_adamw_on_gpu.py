"""AdamW's kernels on a GPU: whichever computes a step, the weights are the same."""

import pytest
import torch

pytestmark = pytest.mark.gpu


def weights_after(steps, **kernel):
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(300, 70), (70,), (1,), (5000, 64)]
    weights = [torch.randn(shape, device="cuda", generator=generator).requires_grad_() for shape in shapes]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.1, **kernel)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, device="cuda", generator=generator)
        optimizer.step()
    return weights


@pytest.mark.parametrize("kernel", [{"fused": True}, {"foreach": True}])
def test_the_kernels_agree_with_the_plain_loop(kernel):
    plain = weights_after(20, foreach=False, fused=False)
    for found, expected in zip(weights_after(20, **kernel), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for moved, start in zip(plain, weights_after(0), strict=True):
        assert float((moved - start).detach().abs().mean()) > 1e-3
