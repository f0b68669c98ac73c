"""A description of the machine, for the steps' needs and for the record."""

import inspect
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu_steps.step import Job, Outcome

_PACKAGES = ("torch", "vllm", "ray", "transformers", "triton", "flash-attn")


def describe(job: Job) -> Outcome:
    """Return GPUs, driver, toolkit, libraries, and whether variable-length flash attention is there."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "varlen_attention": _varlen(),
    }
    if count:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["bfloat16"] = torch.cuda.is_bf16_supported()
        facts["capability"] = torch.cuda.get_device_capability(0)
    gpus = [each.name for each in properties]
    gib = min((each.total_memory / 2**30 for each in properties), default=0.0)
    where = f"{count} × {gpus[0]}, {gib:.0f} GiB, driver {facts['driver']}, CUDA {facts['cuda']}" if gpus else "no GPU"
    libraries = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    summary = f"{where}; Python {facts['python']}, {libraries}; variable-length attention: {facts['varlen_attention']}"
    return Outcome(summary, {"gpus": gpus, "gpu_gib": gib, "facts": facts})


def _version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    ended = subprocess.run(query, text=True, capture_output=True, check=False, timeout=30)
    return next(iter(ended.stdout.splitlines()), None) if ended.returncode == 0 else None


def _varlen() -> str:
    """Return "yes", or what this torch lacks of the variable-length function."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "none in this torch"
    missing = {"scale", "window_size"} - set(inspect.signature(varlen_attn).parameters)
    return f"without {', '.join(sorted(missing))}" if missing else "yes"
