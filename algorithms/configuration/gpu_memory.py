"""How large a GPU a layout needs, from the model's size: `--check` says it before anything is started."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms.configuration.placement import (
    TransferKind,
    engine_share,
    placement,
    shares_gpu,
    transfer_kind,
)
from algorithms.configuration.resources import learner_bytes
from algorithms.models.names import ModelFacts

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig

# What vLLM takes of a GPU when it is not told: its own default.
VLLM_SHARE = 0.92
_WAYS = {
    TransferKind.IN_PROCESS: "copied within the driver's process",
    TransferKind.IPC: "CUDA IPC on each GPU",
    TransferKind.NCCL: "NCCL from the first learner to all engines",
    TransferKind.OBJECT_STORE: "Ray's object store",
}


def least_gpu_bytes(config: "GRPOConfig", model: ModelFacts) -> int:
    """What a GPU must have at least; activations, and an engine's cache in what its weights leave, come on top.

    0 where no GPU is used.
    """
    learner = _learner_bytes(config, model) if config.learners_settings.num_gpus_per_learner else 0
    weights = _engine_bytes(config, model) if _engine_on_gpu(config) else 0
    share = engine_share(config) or (VLLM_SHARE if config.env_runners_settings.engine == "vllm" else 1.0)
    if shares_gpu(config):
        return int(max(learner / (1 - share) if share < 1 else learner + weights, weights / share))
    return int(max(learner, weights / share))


def gpu_lines(config: "GRPOConfig", model: ModelFacts | None) -> Iterator[tuple[str, str]]:
    """The lines of `--check` about placement: how weights travel, who shares a GPU, and how large it must be."""
    yield "placement", f"{placement(config)}; weights: {_WAYS[transfer_kind(config)]}"
    if model is None or not least_gpu_bytes(config, model):
        return
    learner, weights = _learner_bytes(config, model), _engine_bytes(config, model)
    share = engine_share(config) or VLLM_SHARE
    if shares_gpu(config):
        asleep = "nothing" if config.env_runners_settings.sleep_while_training else "the same"
        text = (
            f"{_gib(learner)} for a learner and {share:.0%} for an engine ({_gib(weights)} weights, the rest cache), "
            f"{asleep} for the engine while the learner works"
        )
    else:
        text = f"{_gib(learner)} on a learner's, {_gib(weights)} and the cache on an engine's"
    yield "each GPU", f"{text}; at least {_gib(least_gpu_bytes(config, model))}, without activations"


def _learner_bytes(config: "GRPOConfig", model: ModelFacts) -> int:
    return 0 if config.learners_settings.offload else sum(learner_bytes(config, model).values())


def _engine_bytes(config: "GRPOConfig", model: ModelFacts) -> int:
    runners = config.env_runners_settings
    return -(-model.weight_bytes(runners.dtype) // runners.tensor_parallel_size)


def _engine_on_gpu(config: "GRPOConfig") -> bool:
    local = not config.env_runners_settings.num_env_runners and config.learners_settings.num_gpus_per_learner > 0
    return config.env_runners_settings.num_gpus_per_env_runner > 0 or local


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
