"""Which learners and engines share GPUs, how weights travel between them, and which layouts are refused. No Ray."""

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


# One GPU takes one of each and never two of a kind, in whatever order Ray places them.
RUNNER_SHARE, LEARNER_SHARE = 0.51, 0.49
# Of its memory the engine takes so much while it generates, unless it is told otherwise.
SHARED_ENGINE_MEMORY = 0.45
# As `quantization` of env_runners.vllm: the engine holds its linear layers in int8.
INT8 = "r3_int8"


class Placement(StrEnum):
    """The placement of engines relative to learners."""

    ONE_PROCESS = "one process"
    SHARED_GPUS = "an engine and a learner on every GPU"
    OWN_GPUS = "engines and learners on separate GPUs"
    OTHER = "other"


class TransferKind(StrEnum):
    """How weights get from the learners to the engines, see `algorithms.rollout.weight_sync`."""

    IN_PROCESS = "in_process"
    IPC = "ipc"
    NCCL = "nccl"
    OBJECT_STORE = "object_store"


# In words, for `--check` and a run's first lines.
WAYS = {
    TransferKind.IN_PROCESS: "copied within the driver's process",
    TransferKind.IPC: "CUDA IPC on each GPU",
    TransferKind.NCCL: "NCCL from the first learner to all engines",
    TransferKind.OBJECT_STORE: "Ray's object store",
}


_BEST = {
    Placement.ONE_PROCESS: TransferKind.IN_PROCESS,
    Placement.SHARED_GPUS: TransferKind.IPC,
    Placement.OWN_GPUS: TransferKind.NCCL,
    Placement.OTHER: TransferKind.OBJECT_STORE,
}


def placement(config: "BaseConfig") -> Placement:
    """Return the placement that follows from the numbers of actors and their shares of GPUs."""
    runners, learners = config.env_runners_settings, config.learners_settings
    if not runners.num_env_runners and not learners.num_learners:
        return Placement.ONE_PROCESS
    if not runners.num_env_runners or not learners.num_learners:
        return Placement.OTHER
    engine, learner = runners.num_gpus_per_env_runner, learners.num_gpus_per_learner
    if engine >= 1 and learner >= 1:
        return Placement.OWN_GPUS
    paired = runners.num_env_runners == learners.num_learners and 0.5 < engine < 1 and 0 < learner <= 1 - engine
    return Placement.SHARED_GPUS if paired else Placement.OTHER


def transfer_kind(config: "BaseConfig") -> TransferKind:
    """Return the transfer that `env_runners.weight_transfer` names, or for `auto` the best one for the placement.

    Raises:
        ConfigError: the way cannot work with the placement or the engine.
    """
    runners, where = config.env_runners_settings, placement(config)
    best, of_gpus = _BEST[where], (TransferKind.IPC, TransferKind.NCCL)
    if (runners.engine != "vllm" or sends_adapter(config)) and best in of_gpus:
        best = TransferKind.OBJECT_STORE
    if runners.weight_transfer in ("auto", best):
        return best
    kind = TransferKind(runners.weight_transfer)
    if kind is TransferKind.OBJECT_STORE:
        return kind
    if sends_adapter(config):
        raise ConfigError(
            f"env_runners.weight_transfer: {kind} sends whole weights, and env_runners.lora_weights=adapter an "
            "adapter; fix: env_runners.weight_transfer=auto"
        )
    needs = {
        TransferKind.IPC: f"vLLM engines and learners in pairs, each pair on one GPU (shares such as {RUNNER_SHARE} "
        f"and {LEARNER_SHARE}, as many env runners as learners)",
        TransferKind.NCCL: "vLLM engines and learners in actors, on separate whole GPUs",
    }[kind]
    raise ConfigError(f"env_runners.weight_transfer: {kind} needs {needs}; fix: env_runners.weight_transfer=auto")


def check_placement(config: "BaseConfig") -> None:
    """Check that Ray can give the shares of GPUs, and that weights have a way.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    _check_share("env_runners.num_gpus_per_env_runner", config.env_runners_settings.num_gpus_per_env_runner)
    _check_share("learners.num_gpus_per_learner", config.learners_settings.num_gpus_per_learner)
    transfer_kind(config)


def shares_gpu(config: "BaseConfig") -> bool:
    """Return whether an engine may find a learner on its GPU."""
    runners, learners = config.env_runners_settings, config.learners_settings
    if not runners.num_env_runners:
        return not learners.num_learners and learners.num_gpus_per_learner > 0
    return 0 < runners.num_gpus_per_env_runner < 1 and 0 < learners.num_gpus_per_learner < 1


def sends_adapter(config: "BaseConfig") -> bool:
    """Return whether engines keep the model as it was loaded, and get the adapter alone."""
    return config.rl_module_settings.lora_rank > 0 and config.env_runners_settings.lora_weights == "adapter"


def engine_in_int8(config: "BaseConfig") -> bool:
    """Return whether engines quantize the linear layers of what they get."""
    runners = config.env_runners_settings
    return runners.engine == "vllm" and runners.vllm.get("quantization") == INT8


def engine_is_on_gpu(config: "BaseConfig") -> bool:
    """Return whether engines have GPUs: their own, or in the driver the learner's."""
    local = not config.env_runners_settings.num_env_runners and config.learners_settings.num_gpus_per_learner > 0
    return config.env_runners_settings.num_gpus_per_env_runner > 0 or local


def engine_share(config: "BaseConfig") -> float | None:
    """Return the share of its GPU that a vLLM engine takes for weights and cache; None: vLLM's default, nearly all."""
    runners = config.env_runners_settings
    share: Any = runners.vllm.get("gpu_memory_utilization", runners.gpu_memory_utilization)
    if isinstance(share, int | float):
        return share
    return SHARED_ENGINE_MEMORY if engine_has_a_learner_beside(config) else None


def engine_sleeps(config: "BaseConfig") -> bool:
    """Return whether engines free their GPU memory between rollouts."""
    sleeps = config.env_runners_settings.sleep_while_training
    rests = engine_has_a_learner_beside(config) and not config.training_settings.max_off_policy_steps
    return rests if sleeps is None else sleeps


def engine_has_a_learner_beside(config: "BaseConfig") -> bool:
    """Return whether each vLLM engine has one learner on its GPU."""
    pairs = placement(config) in (Placement.ONE_PROCESS, Placement.SHARED_GPUS)
    return config.env_runners_settings.engine == "vllm" and shares_gpu(config) and pairs


def _check_share(key: str, gpus: float) -> None:
    if gpus > 1 and gpus != int(gpus):
        raise ConfigError(f"{key}: {gpus:g}: Ray gives whole GPUs, or a part of one; fix: {key}={math.ceil(gpus)}")
