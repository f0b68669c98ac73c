"""The KV cache of a vLLM engine: how many bytes, and for how many sequences at once."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError
from algorithms.config.placement import engine_share
from algorithms.models.names import ModelFacts
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.installation import found_gpus
from algorithms.preflight.memory import VLLM_SHARE, engine_is_on_gpu

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# On a CPU, where a cache has no memory of its own, unless a single sequence needs more.
CPU_CACHE_BYTES = 2**30
# vLLM deals its cache out in blocks of so many tokens on a CPU, one of which stays empty.
_CPU_BLOCK = 128
_OPTION, _VARIABLE = "kv_cache_memory_bytes", "VLLM_CPU_KVCACHE_SPACE"


def sequence_bytes(config: "BaseConfig", model: ModelFacts) -> int:
    """Return the bytes of the longest sequence's keys and values on one GPU, or on the CPU."""
    runners = config.env_runners_settings
    length = config.engine_length or model.context or 0
    if not engine_is_on_gpu(config):
        length = (-(-length // _CPU_BLOCK) + 2) * _CPU_BLOCK
    return -(-model.cache_bytes(length, runners.dtype) // runners.tensor_parallel_size)


def cpu_cache_bytes(config: "BaseConfig", model: ModelFacts) -> int:
    """Return the bytes that an engine on a CPU keeps for its cache.

    `env_runners.vllm.kv_cache_memory_bytes` or vLLM's own VLLM_CPU_KVCACHE_SPACE (GiB) names them. Else it is room for
    `max_num_seqs` of the longest sequences, but a GiB at most, and for one sequence at least.
    """
    named = config.env_runners_settings.vllm.get(_OPTION)
    if isinstance(named, int):
        return named
    if os.environ.get(_VARIABLE, "").isdigit():
        return int(os.environ[_VARIABLE]) * 2**30
    one = sequence_bytes(config, model)
    return max(one, min(CPU_CACHE_BYTES, one * config.env_runners_settings.max_num_seqs))


def gpu_cache_bytes(config: "BaseConfig", model: ModelFacts) -> int | None:
    """Return what an engine's share of this machine's smallest GPU leaves beside its weights; None without a GPU.

    What vLLM needs beside weights and cache is not in it.
    """
    if (gpus := found_gpus()) is None:
        return None
    runners = config.env_runners_settings
    weights = -(-model.weight_bytes(runners.dtype) // runners.tensor_parallel_size)
    return int((engine_share(config) or VLLM_SHARE) * gpus.least_bytes) - weights


def room_lines(config: "BaseConfig", model: ModelFacts, tokens: int) -> Iterator[tuple[str, str]]:
    """Yield the line of `--check` for a vLLM engine that could generate more of a step's responses at a time.

    Args:
        config: of the run.
        model: that is served.
        tokens: of a response and its prompt at full length.
    """
    runners, training = config.env_runners_settings, config.training_settings
    cache = gpu_cache_bytes(config, model) if runners.engine == "vllm" and engine_is_on_gpu(config) else None
    if cache is None:
        return
    room = cache * runners.tensor_parallel_size // model.cache_bytes(tokens, runners.dtype)
    to_generate = -(-training.queries_per_step * training.group_size // max(1, runners.num_env_runners))
    useful = min(room, to_generate)
    if useful > runners.max_num_seqs:
        yield "", f"the cache of a GPU here has room for {room} of them; faster: env_runners.max_num_seqs={useful}"


def cache_bytes(config: "BaseConfig", model: ModelFacts) -> int | None:
    """Return the bytes of a vLLM engine's cache; None where they depend on a GPU that is not here."""
    return gpu_cache_bytes(config, model) if engine_is_on_gpu(config) else cpu_cache_bytes(config, model)


def responses_at_once(config: "BaseConfig", held_out: int | None) -> int:
    """Return the most responses that an engine decodes at a time, in training and in evaluations."""
    training, evaluation = config.training_settings, config.evaluation_settings
    trained = (training.queries_per_step + config.extra_prompts()) * training.group_size
    evaluated = min(evaluation.limit or held_out or 0, held_out or 0) * evaluation.samples
    return min(config.env_runners_settings.max_num_seqs, max(trained, evaluated))


def engine_bytes(config: "BaseConfig", model: ModelFacts, use: ContextUse, at_once: int) -> dict[str, int]:
    """Return the bytes of one engine by part; without `cache` where that depends on a GPU that is not here.

    The transformers engine makes its cache for the responses that it decodes `at_once`.
    """
    runners = config.env_runners_settings
    weights = {"weights": -(-model.weight_bytes(runners.dtype) // runners.tensor_parallel_size)}
    if runners.engine != "vllm":
        return weights | {"cache": model.cache_bytes(at_once * use.plain, runners.dtype)}
    cache = cache_bytes(config, model)
    return weights if cache is None else weights | {"cache": cache}


def validate_cache(config: "BaseConfig", model: ModelFacts) -> None:
    """Check that a vLLM engine's cache holds the longest sequence, and note the size that it is to have on a CPU.

    Raises:
        ConfigError: vLLM would refuse to start; the line names the setting and the fix.
    """
    if config.env_runners_settings.engine != "vllm":
        return
    cache, needed = cache_bytes(config, model), sequence_bytes(config, model)
    if not engine_is_on_gpu(config):
        config.measured_cache(cache)
    length = config.engine_length
    if cache is None or cache >= needed or length is None:  # None: `--check` has not read prompts on the Hub
        return
    fix = f"a shorter env_runners.max_response_tokens, or env_runners.max_model_len below {length}"
    if engine_is_on_gpu(config):
        key, more = "env_runners.gpu_memory_utilization", "a larger share, a larger GPU or tensor_parallel_size"
    elif _OPTION in config.env_runners_settings.vllm:
        key, more = f"env_runners.vllm.{_OPTION}", f"{needed}"
    else:
        key, more = _VARIABLE, f"{-(-needed // 2**30)}"
    raise ConfigError(
        f"{key}: leaves {max(0, cache) / 2**30:.2f} GiB for the cache, and one sequence of {length} tokens takes "
        f"{needed / 2**30:.2f} GiB; fix: {more}, or {fix}"
    )
