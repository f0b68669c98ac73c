"""Products by oneDNN equal PyTorch's, forward and backward, and leave a model's parameters as they are."""

import pytest
import torch
from torch.nn import functional

from algorithms.models import products
from algorithms.models.products import LARGE, OneDNNLinear, linear, use_onednn, uses_onednn

needs_onednn = pytest.mark.skipif(
    not uses_onednn(torch.empty(LARGE // 64, 64)), reason="this processor has no AVX-512, or torch no oneDNN"
)
ROWS, WIDTH, OUT = 7, 192, 512


def operands(*, bias: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(2, ROWS, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(OUT, WIDTH, generator=generator, requires_grad=True)
    return values, weight, torch.randn(OUT, generator=generator, requires_grad=True) if bias else None


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_float64(bias: bool) -> None:
    """No factor is rounded to a lower precision: bfloat16 would be .1 away."""
    ours = operands(bias=bias)
    exact = [None if t is None else t.detach().double().requires_grad_() for t in ours]
    outer = torch.randn(2, ROWS, OUT, generator=torch.Generator().manual_seed(4))
    given, wanted = [t for t in ours if t is not None], [t for t in exact if t is not None]
    found, reference = linear(*ours), functional.linear(*exact)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), reference, rtol=0, atol=1e-4)
    by_ours = torch.autograd.grad((found * outer).sum(), given)
    by_exact = torch.autograd.grad((reference * outer.double()).sum(), wanted)
    for one, other in zip(by_ours, by_exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=5e-4)


@needs_onednn
def test_frozen_weights_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As below an adapter: only the product for the values is computed in backward."""
    values, weight, _ = operands(bias=False)
    result = linear(values, weight.detach())
    counted: list[tuple[int, ...]] = []
    product = products._product
    monkeypatch.setattr(products, "_product", lambda *args: (counted.append(args[1].shape), product(*args))[1])
    result.sum().backward()
    assert counted == [(WIDTH, OUT)]
    assert values.grad is not None


@needs_onednn
def test_a_model_keeps_its_parameters_and_its_results() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, OUT), torch.nn.Linear(OUT, 2))
    values, before = torch.randn(ROWS, WIDTH), dict(model.named_parameters())
    expected = model(values)
    use_onednn(model)
    assert [type(layer) for layer in model] == [OneDNNLinear, torch.nn.Linear]  # the second is small
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    torch.testing.assert_close(model(values), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    values, weight = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(OUT, WIDTH, dtype=dtype)
    assert torch.equal(linear(values, weight), functional.linear(values, weight))


def test_autocast_is_obeyed_and_no_rows_are_no_error() -> None:
    values, weight, _ = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(values, weight).dtype == torch.bfloat16
    assert linear(values[:0], weight).shape == (0, ROWS, OUT)
