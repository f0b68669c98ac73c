"""Start vLLM: its arguments, the stages to show meanwhile, and one line if it cannot start."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from algorithms.utils.errors import InputError, RunError
from algorithms.utils.starting import READY

if TYPE_CHECKING:
    from vllm import LLM

# One process: weights reach the engine without a second hop, and a runner that dies takes its engine along.
# A split model's workers are spawned: a fork may not use CUDA once its parent has asked torch what it was built for.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR"}
OnStage = Callable[[str], None]

# What vLLM logs when a stage begins, and what it is called here.
_STAGES = (
    (re.compile(r"Starting to load model"), "loading weights"),
    (re.compile(r"Model loading took|Loading weights took"), "preparing"),
    (re.compile(r"torch\.compile|[Cc]ompil|[Ww]arming up"), "compiling and warming up"),
    (re.compile(r"[Cc]apturing|CUDA graph"), "capturing CUDA graphs"),
    (re.compile(r"KV cache size"), "making the cache"),
)

_SHORTER = "a smaller env_runners.max_response_tokens or env_runners.max_model_len"
# What vLLM and torch say, and what helps.
_FIXES = (
    (
        re.compile(r"KV cache is needed|No available memory for the cache|on kv cache allocation"),
        f"{_SHORTER}; a larger env_runners.gpu_memory_utilization, or on a CPU env_runners.vllm.kv_cache_memory_bytes",
    ),
    (
        re.compile(r"on startup is less than desired|memory utilization"),
        "a smaller env_runners.gpu_memory_utilization, or end what else uses that memory",
    ),
    (
        re.compile(r"out of memory|OutOfMemory|can't allocate memory|Cannot allocate memory"),
        "a smaller env_runners.gpu_memory_utilization or max_num_seqs, or more GPUs per model "
        "(env_runners.tensor_parallel_size)",
    ),
    (
        re.compile(r"not supported for now|no vLLM implementation|Cannot find model module|unsupported"),
        "env_runners.engine=transformers",
    ),
    (re.compile(r"does not support float16"), "env_runners.dtype=float32"),
    (re.compile(r"support LoRA"), "env_runners.lora_weights=merged"),
    (re.compile(r"compute capability|bfloat16 is only supported"), "env_runners.dtype=float16"),
    (
        re.compile(r"unexpected keyword argument|validation error|extra_forbidden"),
        "correct env_runners.vllm, whose entries are arguments of vllm.LLM",
    ),
)
MOST_OF_A_REASON = 300  # letters
_ANY_FIX = "R3_VERBOSE=1 shows all that vLLM prints; env_runners.engine=transformers works without vLLM"


class EngineDidNotStart(RunError):
    """vLLM could not be started."""


def import_vllm() -> None:
    """Import vLLM, set up for this project.

    Raises:
        InputError: it is not installed.
    """
    quiet = {} if os.environ.get("R3_VERBOSE") else _QUIET
    for name, value in (_ENVIRONMENT | quiet).items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM  # noqa: F401  # importing the package alone loads next to nothing
    except ImportError as error:
        raise InputError(
            f"env_runners.engine: vllm cannot be imported ({error}); "
            "fix: make install, or for CUDA pip install -e '.[vllm]'; or env_runners.engine=transformers"
        ) from error


def start_vllm(model: str, arguments: Mapping[str, Any], on_stage: OnStage) -> "LLM":
    """Start an engine.

    Args:
        model: folder or Hub id.
        arguments: of `vllm.LLM`.
        on_stage: called with what is being done, whenever that changes.

    Raises:
        EngineDidNotStart: one line with vLLM's reason, and the fix.
    """
    from vllm import LLM

    on_stage("starting")
    try:
        with _stages_reported(on_stage) as logging_arguments:
            llm = LLM(model, **(logging_arguments | dict(arguments)))
    except Exception as error:  # whatever its version raises
        raise EngineDidNotStart(_one_line(error)) from error
    on_stage(READY)
    return llm


def cpu_arguments(cache_bytes: int | None) -> dict[str, Any]:
    """Return vLLM's arguments for a CPU; nothing on a GPU.

    It fails there when it reads a seeded request's prompt in pieces: its generators cannot be rewound. And it would
    take nearly all memory for its cache.

    Args:
        cache_bytes: of the cache; None: a GiB.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    return {"enable_chunked_prefill": False, "kv_cache_memory_bytes": cache_bytes or 2**30}


def parallel_arguments(size: int) -> dict[str, Any]:
    """Return arguments for worker processes on this machine: the placement group has no room for vLLM's Ray actors."""
    return {"tensor_parallel_size": size, "distributed_executor_backend": "mp"} if size > 1 else {}


@contextlib.contextmanager
def _stages_reported(on_stage: OnStage) -> Iterator[dict[str, Any]]:
    """Read the stages of a start from vLLM's log, of which only errors are printed unless R3_VERBOSE is set.

    Yields:
        Arguments of `vllm.LLM`, by which it leaves its loggers as they are: it would put the reader of stages out.
    """
    from vllm.config.logging import LoggingConfig

    if os.environ.get("R3_VERBOSE"):
        yield {}
        return
    logger, handler = logging.getLogger("vllm"), _StageHandler(on_stage)
    others, propagate = list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield {"logging_config": LoggingConfig(configure_logging=False)}
    finally:
        logger.handlers, logger.propagate = others, propagate
        logger.setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"))


class _StageHandler(logging.Handler):
    def __init__(self, on_stage: OnStage) -> None:
        super().__init__(logging.INFO)
        self._on_stage, self._last = on_stage, ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        stage = next((name for pattern, name in _STAGES if pattern.search(message)), "")
        if stage and stage != self._last:
            self._last = stage
            self._on_stage(stage)


def _one_line(error: BaseException) -> str:
    """Return vLLM's reason in a line, and what helps."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines)
    fix = next((fix for pattern, fix in _FIXES if pattern.search(text)), _ANY_FIX)
    # Pydantic's first line only counts the errors.
    reason = lines[1].partition(" [type=")[0] if "validation error" in lines[0] and len(lines) > 1 else lines[0]
    return f"env_runners.engine: vLLM did not start: {reason[:MOST_OF_A_REASON].rstrip('.')}; fix: {fix}"
