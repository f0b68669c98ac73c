"""Compare what a configuration reserves with what there is, and count the bytes of its parts."""

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError
from algorithms.config.placement import engine_share, engine_sleeps, shares_gpu
from algorithms.models.names import BYTES, ModelFacts
from algorithms.preflight.installation import found_gpus, validate_driver, validate_engine_gpus

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


_ADAM_MOMENTS = 2
# Of a process on the CPU: Python with torch, Ray and transformers, and what vLLM adds.
LIBRARIES_BYTES, VLLM_BYTES = int(0.65 * 2**30), int(0.6 * 2**30)
# What a run with a GPU needs at least; the engine in the driver then has it too.
USE_A_GPU = "learners.num_gpus_per_learner=1"
# For a GPU that is too small.
LESS_GPU_MEMORY = (
    "rl_module.lora_rank=16, learners.sharding=fsdp with several learners, a smaller model, or where engine and "
    "learner share the GPU a smaller env_runners.gpu_memory_utilization"
)


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs, as Ray counts them; `where` names their owner."""

    cpus: float
    gpus: float
    where: str = ""

    def __str__(self) -> str:
        cpus, gpus = (f"{count:g}" for count in (self.cpus, self.gpus))
        return f"{cpus} CPU{'' if cpus == '1' else 's'} and {gpus} GPU{'' if gpus == '1' else 's'}"


def reserved(config: "BaseConfig") -> Resources:
    """Return what the actors reserve; the driver's own engine and learner count with their GPUs only."""
    runners, learners = config.env_runners_settings, config.learners_settings
    return Resources(
        cpus=(runners.num_env_runners + runners.spares) * runners.num_cpus_per_env_runner
        + learners.num_learners * learners.num_cpus_per_learner,
        gpus=max(1, runners.num_env_runners + runners.spares) * runners.num_gpus_per_env_runner
        + max(1, learners.num_learners) * learners.num_gpus_per_learner,
    )


def available() -> Resources | None:
    """Return what the running Ray has, or else this machine; None on a cluster that is not joined yet."""
    import ray

    if ray.is_initialized():
        total = ray.cluster_resources()
        return Resources(total.get("CPU", 0), total.get("GPU", 0), "the cluster")
    if os.environ.get("RAY_ADDRESS"):
        return None
    import torch

    return Resources(os.cpu_count() or 1, torch.cuda.device_count(), "this machine")


def leaves_gpus_idle(config: "BaseConfig", there: Resources) -> bool:
    """Return whether there are GPUs, and neither engines nor learners reserve any."""
    return there.gpus > 0 and not reserved(config).gpus


def validate_resources(config: "BaseConfig") -> None:
    """Check that no actor would wait without end, or fail to import.

    Raises:
        ConfigError: GPUs that this machine does not have or cannot use, vLLM engines that reserve none of those that
            are there, or vLLM where it is not installed. A cluster that is not joined yet is not asked.
    """
    there = available()
    if there is None:
        return
    needed = reserved(config)
    validate_engine_gpus(config, there.gpus)
    if needed.gpus > there.gpus:
        runners = config.env_runners_settings.num_gpus_per_env_runner > 0
        key = "env_runners.num_gpus_per_env_runner" if runners else "learners.num_gpus_per_learner"
        if there.where == "this machine":
            validate_driver(key)
        raise ConfigError(
            f"{key}: env runners and learners need {needed.gpus:g} GPUs, {there.where} has {there.gpus:g}; "
            "fix: fewer of them, or a fraction of a GPU each"
        )
    if there.where == "this machine" and not vllm_is_installed() and config.env_runners_settings.engine == "vllm":
        raise ConfigError(
            "env_runners.engine: 'vllm' is not installed; fix: make install, or for CUDA pip install -e '.[vllm]'; "
            "or env_runners.engine=transformers"
        )
    if there.where == "this machine" and config.rl_module_settings.lora_rank and not _is_installed("peft"):
        raise ConfigError(
            "rl_module.lora_rank: peft is not installed; fix: pip install -e '.[lora]', or rl_module.lora_rank=0"
        )


def vllm_is_installed() -> bool:
    """Return whether the vLLM package is installed; it is not imported."""
    return _is_installed("vllm")


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def learner_bytes(config: "BaseConfig", model: ModelFacts, *, at_rest: bool = False) -> dict[str, int]:
    """Return the bytes that one learner holds in an update, by part; activations and adapters are extra.

    Args:
        config: the configuration.
        model: the model's size.
        at_rest: only what it holds between updates too, while engines generate.
    """
    master, dtype = model.weight_bytes("float32"), config.rl_module_settings.dtype
    if config.rl_module_settings.lora_rank:
        parts = {f"frozen {dtype} weights": model.weight_bytes(dtype)}
    else:
        parts = {"float32 weights": master, "gradients": master, "Adam moments": _ADAM_MOMENTS * master}
        if config.needs_reference:
            parts["reference"] = master
        if at_rest:
            del parts["gradients"]
    if config.teacher_parameters:
        parts["teacher"] = config.teacher_parameters * BYTES[dtype]
    learners = config.learners_settings
    if learners.sharding == "fsdp":
        where = " in CPU memory" if learners.offload else ""
        return {f"shards of {name}{where}": -(-size // max(1, learners.num_learners)) for name, size in parts.items()}
    if dtype != "float32" and not config.rl_module_settings.lora_rank and not at_rest:
        parts[f"{dtype} copies"] = model.weight_bytes(dtype)
    return parts


def learner_peak(config: "BaseConfig", model: ModelFacts, activations: int, *, several: bool) -> int:
    """Return the bytes that a learner holds at most.

    The gradient grows while activations go: with a single micro-batch the two are never there at once.

    Args:
        config: the configuration.
        model: the model's size.
        activations: bytes of a micro-batch's, with a chunk of its logits.
        several: whether a step has several micro-batches, whose gradients stay.
    """
    parts = learner_bytes(config, model)
    gradients = parts.get("gradients", 0)
    held = sum(parts.values()) - gradients
    return held + (gradients + activations if several else max(gradients, activations))


# What vLLM takes of a GPU when it is not told: its own default.
VLLM_SHARE = 0.92


def least_gpu_bytes(config: "BaseConfig", model: ModelFacts) -> int:
    """Return what a GPU must have at least; activations, and an engine's cache in the rest of its share, are extra.

    A GPU that engine and learner share needs room for the larger of two phases: the engine's share beside the learner
    at rest, and the update, beside the engine unless that sleeps. 0 where no GPU is used.
    """
    on_gpu = config.learners_settings.num_gpus_per_learner > 0
    rest, update = (_learner_bytes(config, model, at_rest=at_rest) if on_gpu else 0 for at_rest in (True, False))
    weights = _engine_bytes(config, model) if engine_is_on_gpu(config) else 0
    share = engine_share(config) or (VLLM_SHARE if config.env_runners_settings.engine == "vllm" else 1.0)
    if not shares_gpu(config):
        return int(max(update, weights / share))
    generating, updating = (size / (1 - share) if share < 1 else size + weights for size in (rest, update))
    return int(max(generating, update if engine_sleeps(config) else updating, weights / share))


def gpu_memory(config: "BaseConfig", model: ModelFacts) -> str:
    """Write for `--check` what each GPU must hold, and how large it must be; "" where no GPU is used."""
    if not least_gpu_bytes(config, model):
        return ""
    update, weights = _learner_bytes(config, model), _engine_bytes(config, model)
    share = engine_share(config) or VLLM_SHARE
    if shares_gpu(config):
        rest = _learner_bytes(config, model, at_rest=True)
        asleep = "nothing" if engine_sleeps(config) else "the same"
        text = (
            f"{_gib(rest)} for a learner and {share:.0%} for an engine ({_gib(weights)} weights, the rest cache); "
            f"in an update {_gib(update)} for the learner, {asleep} for the engine"
        )
    else:
        text = f"{_gib(update)} on a learner's, {_gib(weights)} and the cache on an engine's"
    return f"{text}; at least {_gib(least_gpu_bytes(config, model))}, without activations"


def gpu_shortage(config: "BaseConfig", model: ModelFacts) -> str:
    """Write how large this machine's smallest GPU is, if it is too small; "" where it is not, or is unknown."""
    there, needed = available(), least_gpu_bytes(config, model)
    if there is None or there.where != "this machine" or not there.gpus or not needed:
        return ""
    found = found_gpus()
    if found is None or not found.least_bytes or needed <= found.least_bytes:
        return ""
    return f"the smallest GPU here has {_gib(found.least_bytes)}"


def _learner_bytes(config: "BaseConfig", model: ModelFacts, *, at_rest: bool = False) -> int:
    return 0 if config.learners_settings.offload else sum(learner_bytes(config, model, at_rest=at_rest).values())


def _engine_bytes(config: "BaseConfig", model: ModelFacts) -> int:
    runners = config.env_runners_settings
    return -(-model.weight_bytes(runners.dtype) // runners.tensor_parallel_size)


def engine_is_on_gpu(config: "BaseConfig") -> bool:
    """Return whether engines have GPUs: their own, or in the driver the learner's."""
    local = not config.env_runners_settings.num_env_runners and config.learners_settings.num_gpus_per_learner > 0
    return config.env_runners_settings.num_gpus_per_env_runner > 0 or local


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
