"""vLLM's weight-transfer engines, each of which also takes tensors of its own process.

With that, whatever the way of the bytes, an update is vLLM's own sequence: `start_weight_update`, `update_weights` for
each bucket, `finish_weight_update`. Tensors at hand serve the object store, an engine that shares the learner's
process, and runners that come back while the others are at work.

vLLM's workers import this module alone: it also lets them read a composite model's folder, only the text model, under
the class and names of a plain one.
"""

import functools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.config import WeightTransferConfig
from vllm.config.load import LoadConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferInitInfo
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from algorithms.models.composite import text_config, text_name
from algorithms.rollout.weight_sync import vllm_int8  # noqa: F401  # registers a quantization
from algorithms.rollout.weight_sync.serialization import TENSORS

# vLLM's name of a composite model's folder, of which only the text is read.
TEXT_FORMAT = "r3_text"


@dataclass
class NothingToInit(WeightTransferInitInfo):
    """The tensors of this process need no rendezvous."""


@dataclass
class NothingToReceive(WeightTransferUpdateInfo):
    """The tensors of this process are not received."""


class _TakesTensors:
    """Loads tensors as they are; every other update is the backend's."""

    model: Any

    def __init__(self, config: WeightTransferConfig, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)  # type: ignore[call-arg]  # a mixin, see below
        tied = getattr(vllm_config.model_config.hf_text_config, "tie_word_embeddings", False)
        if tied and not hasattr(model, "lm_head"):
            model.load_weights = functools.partial(_load_without_head, model.load_weights)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if TENSORS in update_info:
            self.model.load_weights(update_info[TENSORS])
        else:
            super().update_weights(update_info)  # type: ignore[misc]  # a mixin in front of vLLM's class


def _load_without_head(load: Callable[[Any], Any], weights: Iterable[tuple[str, Any]]) -> Any:
    """Load into a model that reads its logits off the embeddings (Gemma 2): it has no head of its own."""
    return load([(name, tensor) for name, tensor in weights if not name.startswith("lm_head.")])


class TensorsEngine(_TakesTensors, WeightTransferEngine[NothingToInit, NothingToReceive]):
    """Takes tensors of its own process only."""

    init_info_cls = NothingToInit
    update_info_cls = NothingToReceive

    def init_transfer_engine(self, init_info: NothingToInit) -> None:
        """Prepare nothing."""

    def start_weight_update(self) -> None:
        """Prepare the layers for weights in Hugging Face's names and shapes."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Convert what was loaded to the engine's own layout."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info: NothingToReceive) -> None:
        """Not used: this engine takes only tensors of its own process."""
        raise RuntimeError("this engine takes tensors at hand only")

    def shutdown(self) -> None:
        """Release nothing."""


class IPCEngine(_TakesTensors, IPCWeightTransferEngine):
    """Takes vLLM's updates, and tensors of its own process."""


class NCCLEngine(_TakesTensors, NCCLWeightTransferEngine):
    """Takes vLLM's updates, and tensors of its own process."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        """Join the group; raise RuntimeError where vLLM would continue without NCCL, and receive nothing."""
        super().init_transfer_engine(init_info)
        if self.model_update_group is None or self.model_update_group.disabled:
            raise RuntimeError("vLLM finds no NCCL library")


def only_text(config: Any) -> Any:
    """Return the configuration of the text model, as vLLM's `hf_overrides`, which is called with other ones too."""
    return text_config(config)


@register_model_loader(TEXT_FORMAT)
class TextLoader(DefaultModelLoader):
    """Reads safetensors files, leaves out weights that are not of the text, and renames the rest."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="safetensors"))

    def get_all_weights(self, model_config: Any, model: Any) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield the text model's weights under its own names."""
        for name, tensor in super().get_all_weights(model_config, model):
            own = text_name(name)
            if own is not None:
                yield own, tensor


def backend_name(kind: str) -> str:
    """Return the registered backend for a kind of transfer (`in_process`, `object_store`, `ipc` or `nccl`)."""
    return f"r3_{kind}" if kind in ("ipc", "nccl") else "r3_tensors"


def register_backends() -> None:
    """Make the backends known to vLLM in this process; twice is no error."""
    if backend_name("ipc") in WeightTransferEngineFactory._registry:
        return
    WeightTransferEngineFactory.register_engine(backend_name("ipc"), IPCEngine)
    WeightTransferEngineFactory.register_engine(backend_name("nccl"), NCCLEngine)
    WeightTransferEngineFactory.register_engine(backend_name("object_store"), TensorsEngine)


def update_arguments(kind: str, *, sleeps: bool) -> dict[str, Any]:
    """Return arguments of `vllm.LLM` for a kind of transfer, and for an engine that sleeps between rollouts."""
    from vllm.platforms import current_platform

    register_backends()
    return {
        "weight_transfer_config": WeightTransferConfig(backend=backend_name(kind)),
        "worker_extension_cls": f"{RegistersBackends.__module__}.{RegistersBackends.__qualname__}",
        # On a CPU there is nothing to free, and vLLM refuses the argument.
        **({"enable_sleep_mode": True} if sleeps and current_platform.is_cuda_alike() else {}),
    }


class RegistersBackends:
    """vLLM's `worker_extension_cls`: workers are separate processes, which import this module when they start."""


register_backends()
