"""Rollouts in int8: vLLM quantizes the linear layers of its model whenever it gets weights (W8A8).

`env_runners.vllm: {quantization: r3_int8}`. A weight has a scale for each output, an activation one for each token,
and both are symmetric (Dettmers et al., arXiv 2208.07339, without its outliers in 16 bits). Embeddings, the head and a
mixture's experts stay in the engine's dtype. vLLM has the kernels, but uses them only for files that were quantized
before; importing this module makes the name known to it.
"""

import functools
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.kernels.linear import init_int8_linear_kernel
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.quantization.online.fp8 import OnlineLinearBase
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from algorithms.config.placement import INT8


@register_quantization_config(INT8)
class Int8Rollouts(QuantizationConfig):
    """What vLLM asks a quantization: for which layers, dtypes and GPUs it is."""

    @classmethod
    def get_name(cls) -> Any:
        """Return the value of vLLM's argument `quantization`."""
        return INT8

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Return the engine's dtypes that the kernels take."""
        return [torch.bfloat16, torch.half, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Return the oldest compute capability, times ten: Turing."""
        return 75

    @classmethod
    def get_config_filenames(cls) -> list[str]:
        """Return no file: there is nothing to configure."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Int8Rollouts":
        """Take nothing from a model's `config.json`."""
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return the method for linear layers; None leaves a layer as it is."""
        return Int8Linear() if isinstance(layer, LinearBase) else None


class Int8Linear(OnlineLinearBase):
    """A linear layer in int8, whose weight is loaded in the model's dtype, and again in each update."""

    def create_weights(self, layer: torch.nn.Module, *sizes: Any, **attributes: Any) -> None:
        """Make the weight [outputs, inputs] in the model's dtype, and choose the kernel."""
        super().create_weights(layer, *sizes, **attributes)
        self._kernel = init_int8_linear_kernel(
            is_channelwise=True, is_static_input_scheme=False, input_symmetric=True, module_name=type(self).__name__
        )

    def process_weights_after_loading(self, layer: Any) -> None:
        """Quantize what was loaded, and give it to the kernel, which may keep it in a layout of its own."""
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        codes, scales = quantize(layer.weight)
        layer.input_scale = layer.input_zero_point = layer.azp_adj = None
        replace_parameter(layer, "weight", codes)
        replace_parameter(layer, "weight_scale", scales)
        # An update copies new scales into the first ones, but oneDNN's matrix keeps the address of these.
        self._scales = scales
        self._kernel.process_weights_after_loading(layer)
        layer._already_called_process_weights_after_loading = True

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's output [tokens, outputs], in the dtype of `x`."""
        return self._kernel.apply_weights(layer, x, bias)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes [outputs, inputs] and float32 scales [outputs, 1], whose product is nearest to the weight."""
    weight, largest = weight.float(), largest_code()
    scales = weight.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / largest
    return (weight / scales).round().clamp(-largest, largest).to(torch.int8), scales


@functools.cache
def largest_code() -> int:
    """Return 127, or 63 on a processor without VNNI: oneDNN sums pairs of products there in 16 bits, which saturate.

    Source: oneDNN, "Nuances of int8 computations". It is found out by a product, which a limit of oneDNN's own
    (`ONEDNN_MAX_CPU_ISA`) changes as well.
    """
    if not current_platform.is_cpu():
        return 127
    size, scale = 64, torch.ones(64, 1)
    codes = torch.full((size, size), 127, dtype=torch.int8)
    matrix = ops.create_onednn_scaled_mm(codes.t(), scale, torch.float32, True, False, 32)
    found, tokens = torch.empty(1, size), torch.full((1, size), 127, dtype=torch.int8)
    ops.onednn_scaled_mm(matrix, tokens, found, scale[:1], None, codes.sum(0, keepdim=True, dtype=torch.float32), None)
    return 127 if (found == 127 * 127 * size).all() else 63
