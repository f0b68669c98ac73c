"""Count the bytes of a configuration's parts: learners, engines and their cache, and what a GPU must have."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from algorithms.config.placement import engine_in_int8, engine_is_on_gpu, engine_share, engine_sleeps, shares_gpu
from algorithms.models.names import BYTES, ModelFacts
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.gpus import found_gpus

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig


_ADAM_MOMENTS = 2
# Of 8-bit moments so many share a float32 scale.
_MOMENTS_PER_SCALE = 256
# Of a weight in 4 bits: its code, and its share of a float32 scale for 64.
_NF4_BYTES = 0.5 + 4 / 64
# Of a process on the CPU: Python with torch, Ray and transformers, and what vLLM adds.
LIBRARIES_BYTES, VLLM_BYTES = int(0.65 * 2**30), int(0.6 * 2**30)
# What CUDA and the libraries take of a GPU beside what is counted.
CUDA_BYTES = 3 * 2**29


def learner_bytes(config: "BaseConfig", model: ModelFacts, *, at_rest: bool = False) -> dict[str, int]:
    """Return the bytes that one learner holds in an update, by part; activations are extra.

    Args:
        config: the configuration.
        model: the model's size.
        at_rest: only what it holds between updates too, while engines generate.
    """
    module, dtype = config.rl_module_settings, config.rl_module_settings.dtype
    weights = config.learners_settings.weights
    if module.lora_rank:
        adapter = _trained(config, model.adapter_parameters(module.lora_rank, module.lora_targets), at_rest)
        quantized = model.weights_under_adapter(module.lora_targets) if module.lora_base == "nf4" else 0
        frozen = {"frozen nf4 weights": int(_NF4_BYTES * quantized)} if quantized else {}
        frozen |= {f"frozen {dtype} weights": (model.parameters - quantized) * BYTES[dtype]}
        parts = frozen | {"adapter": sum(adapter.values())}
    else:
        parts = _trained(config, model.parameters, at_rest)
        if config.needs_reference:
            parts["reference"] = model.weight_bytes(weights)
    if config.measured.teacher_parameters:
        parts["teacher"] = config.measured.teacher_parameters * BYTES[dtype]
    learners = config.learners_settings
    if learners.sharding == "fsdp":
        where = " in CPU memory" if learners.offload else ""
        return {f"shards of {name}{where}": -(-size // max(1, learners.num_learners)) for name, size in parts.items()}
    if dtype != weights and not module.lora_rank and not at_rest:
        parts[f"{dtype} copies"] = model.weight_bytes(dtype)
    return parts


def _trained(config: "BaseConfig", count: int, at_rest: bool) -> dict[str, int]:
    """Return the bytes of so many parameters that are trained."""
    halves = config.learners_settings.weights == "bfloat16" and not config.rl_module_settings.lora_rank
    parts = {"bfloat16 halves of weights": 2 * 2 * count} if halves else {"float32 weights": 4 * count}
    if not at_rest:
        parts["gradients"] = (2 if halves else 4) * count
    if config.learners_settings.moments == "8bit":
        return parts | {"8-bit Adam moments": _ADAM_MOMENTS * (count + 4 * count // _MOMENTS_PER_SCALE)}
    return parts | {"Adam moments": _ADAM_MOMENTS * 4 * count}


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


def least_gpu_bytes(config: "BaseConfig", model: ModelFacts, activations: int = 0, *, several: bool = True) -> int:
    """Return what a GPU must have at least, with the cache that its engine cannot do without (`engine_needs`).

    A GPU that engine and learner share needs room for the larger of two phases: the engine's share beside the learner
    at rest, and the update, beside the engine unless that sleeps. 0 where no GPU is used.

    Args:
        config: the configuration.
        model: the model's size.
        activations: as in `learner_peak`; 0 leaves them out.
        several: likewise.
    """
    rest = update = 0
    if config.learners_settings.num_gpus_per_learner > 0:
        rest, update = _learner_bytes(config, model, at_rest=True), activations
        if not config.learners_settings.offload:
            update = learner_peak(config, model, activations, several=several)
    on_gpu = engine_is_on_gpu(config)
    weights, engine = on_gpu * engine_weights(config, model), on_gpu * engine_needs(config, model)
    share = engine_share(config) or (VLLM_SHARE if config.env_runners_settings.engine == "vllm" else 1.0)
    if not shares_gpu(config):
        return int(max(update, engine / share))
    if share < 1:
        generating, updating = (size / (1 - share) for size in (rest, update))
    else:  # the transformers engine frees its cache
        generating, updating = rest + engine, update + weights
    return int(max(generating, update if engine_sleeps(config) else updating, engine / share))


def gpu_memory(config: "BaseConfig", model: ModelFacts) -> str:
    """Write for `--check` what each GPU must hold, and how large it must be; "" where no GPU is used."""
    if not least_gpu_bytes(config, model):
        return ""
    update, weights = _learner_bytes(config, model), engine_weights(config, model)
    if shares_gpu(config):
        rest, asleep = _learner_bytes(config, model, at_rest=True), "nothing" if engine_sleeps(config) else "the same"
        if config.env_runners_settings.engine == "vllm":
            engine = f"{engine_share(config) or VLLM_SHARE:.0%} for an engine ({gib(weights)} weights, the rest cache)"
        else:
            cache = engine_needs(config, model) - weights
            engine, asleep = f"{gib(weights)} weights and {gib(cache)} cache for an engine", "its weights"
        text = f"{gib(rest)} for a learner and {engine}; in an update {gib(update)} for the learner"
        text += f", {asleep} for the engine"
    else:
        text = f"{gib(update)} on a learner's, {gib(weights)} and the cache on an engine's"
    return f"{text}; at least {gib(least_gpu_bytes(config, model))}, without activations"


def _learner_bytes(config: "BaseConfig", model: ModelFacts, *, at_rest: bool = False) -> int:
    return 0 if config.learners_settings.offload else sum(learner_bytes(config, model, at_rest=at_rest).values())


def engine_weights(config: "BaseConfig", model: ModelFacts) -> int:
    """Return the bytes of an engine's weights on each of its GPUs."""
    runners = config.env_runners_settings
    # A byte each, beside a float32 scale for each output.
    saved = model.weights_under_adapter(()) * (BYTES[runners.dtype] - 1) if engine_in_int8(config) else 0
    return -(-(model.weight_bytes(runners.dtype) - saved) // runners.tensor_parallel_size)


def engine_needs(config: "BaseConfig", model: ModelFacts) -> int:
    """Return the bytes of an engine's weights and, where prompts were measured, of the cache that it cannot do without.

    That is a single sequence's of vLLM, and of the transformers engine that of all which it decodes at once.
    """
    weights, length = engine_weights(config, model), config.measured.engine_length
    if length is None:
        return weights
    runners = config.env_runners_settings
    if runners.engine == "vllm":
        return weights + sequence_bytes(config, model)
    at_once = -(-responses_at_once(config, None) // max(1, runners.num_env_runners))
    return weights + at_once * model.least_cache_bytes(length, runners.dtype)


def gib(count: float) -> str:
    """Write bytes in GiB."""
    return f"{count / 2**30:.1f} GiB"


# On a CPU, where a cache has no memory of its own, unless a single sequence needs more.
CPU_CACHE_BYTES = 2**30
# vLLM deals its cache out in blocks of so many tokens on a CPU, one of which stays empty.
_CPU_BLOCK = 128
CACHE_OPTION, CACHE_VARIABLE = "kv_cache_memory_bytes", "VLLM_CPU_KVCACHE_SPACE"


def sequence_bytes(config: "BaseConfig", model: ModelFacts, tokens: int | None = None) -> int:
    """Return the bytes of a sequence's keys and values: on one GPU at least, on the CPU at most.

    Args:
        config: the configuration.
        model: that is served.
        tokens: of the sequence; None: the longest that is expected.
    """
    runners = config.env_runners_settings
    length = config.measured.engine_length or model.context or 0 if tokens is None else tokens
    if engine_is_on_gpu(config):
        return -(-model.least_cache_bytes(length, runners.dtype) // runners.tensor_parallel_size)
    length = (-(-length // _CPU_BLOCK) + 2) * _CPU_BLOCK
    return -(-model.cache_bytes(length, runners.dtype) // runners.tensor_parallel_size)


def cpu_cache_bytes(config: "BaseConfig", model: ModelFacts) -> int:
    """Return the bytes that an engine on a CPU keeps for its cache.

    `env_runners.vllm.kv_cache_memory_bytes` or vLLM's own VLLM_CPU_KVCACHE_SPACE (GiB) names them. Else it is room for
    `max_num_seqs` of the longest sequences, but a GiB at most, and for one sequence at least.
    """
    named = config.env_runners_settings.vllm.get(CACHE_OPTION)
    if isinstance(named, int):
        return named
    if os.environ.get(CACHE_VARIABLE, "").isdigit():
        return int(os.environ[CACHE_VARIABLE]) * 2**30
    one = sequence_bytes(config, model)
    return max(one, min(CPU_CACHE_BYTES, one * config.env_runners_settings.max_num_seqs))


def gpu_cache_bytes(config: "BaseConfig", model: ModelFacts) -> int | None:
    """Return what an engine's share of this machine's smallest GPU leaves beside its weights; None without a GPU.

    What vLLM needs beside weights and cache is not in it. `env_runners.vllm.kv_cache_memory_bytes` names the cache.
    """
    named = config.env_runners_settings.vllm.get(CACHE_OPTION)
    if isinstance(named, int):
        return named
    if (gpus := found_gpus()) is None:
        return None
    return int((engine_share(config) or VLLM_SHARE) * gpus.least_bytes) - engine_weights(config, model)


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
    weights = {"weights": engine_weights(config, model)}
    if runners.engine != "vllm":
        return weights | {"cache": model.cache_bytes(at_once * use.plain, runners.dtype)}
    cache = cache_bytes(config, model)
    if cache is not None and not engine_is_on_gpu(config):
        cache = max(cache, config.measured.engine_cache_bytes or 0)
    return weights if cache is None else weights | {"cache": cache}
