"""Whether a run fits on the GPUs that are there, and which settings would make it, by the counts of `--check`."""

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError
from algorithms.config.placement import engine_is_on_gpu, engine_share, shares_gpu
from algorithms.models.names import ModelFacts
from algorithms.preflight.activations import activation_bytes, microbatch_tokens
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.gpus import BFLOAT16_CAPABILITY, found_gpus, other_card
from algorithms.preflight.memory import (
    CACHE_OPTION,
    CACHE_VARIABLE,
    CPU_CACHE_BYTES,
    CUDA_BYTES,
    cache_bytes,
    engine_needs,
    gib,
    least_gpu_bytes,
    sequence_bytes,
)
from algorithms.preflight.resources import available
from algorithms.rollout.attempts import named_length

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

NOT_ENOUGH = ": NOT ENOUGH"
# Of vLLM: the blocks of its cache, and the tokens of a batch, which without chunked prefills hold the longest prompt.
_BLOCKS, _BATCH = "num_gpu_blocks_override", "max_num_batched_tokens"
# Ways that are named at most; each is one that suffices.
_MOST_WAYS = 3
# An engine's share of a GPU is suggested in such steps, with a step to spare.
_SHARE_STEP = 0.05
_SHARE = "gpu_memory_utilization"
_ELSE = (
    "a smaller model, a shorter env_runners.max_response_tokens, a larger GPU, or several "
    "(learners.sharding=fsdp with as many learners)"
)


def validate_cache(config: "BaseConfig", model: ModelFacts, use: ContextUse) -> None:
    """Check that a vLLM engine's cache holds the longest sequence, and note the size that it is to have on a CPU.

    Raises:
        ConfigError: vLLM would refuse to start; the line names the setting and the fix.
    """
    if config.env_runners_settings.engine != "vllm":
        return
    cache, needed = cache_bytes(config, model), sequence_bytes(config, model)
    if not engine_is_on_gpu(config):
        config.measured.engine_cache_bytes = cache
    length = config.measured.engine_length
    if cache is None or cache >= needed or length is None:  # None: `--check` has not read prompts on the Hub
        return
    fix, shortage = f"a shorter env_runners.max_response_tokens, or env_runners.max_model_len below {length}", ""
    if engine_is_on_gpu(config):
        shortage = gpu_shortage(config, model, use)
        key, more = _share_key(config), "a larger share, a larger GPU or tensor_parallel_size"
    elif CACHE_OPTION in config.env_runners_settings.vllm:
        key, more = f"env_runners.vllm.{CACHE_OPTION}", f"{needed}"
    else:
        key, more = CACHE_VARIABLE, f"{-(-needed // 2**30)}"
    raise ConfigError(
        f"{key}: leaves {max(0, cache) / 2**30:.2f} GiB for the cache, and one sequence of {length} tokens takes "
        f"{needed / 2**30:.2f} GiB; {shortage or f'fix: {more}, or {fix}'}"
    )


def open_context(config: "BaseConfig", model: ModelFacts, *, several: bool) -> None:
    """Note the context that a vLLM engine is started with: what is expected, and more where a conversation may need it.

    What an environment writes between two answers is not known before it does. So a conversation has the model's
    context, as far as half of the cache holds it and a learner's `token_budget` takes it; where the cache is that of a
    GPU which is not here, and where a teacher reads it too, what is expected.

    Args:
        config: the configuration.
        model: that is served.
        several: whether an episode may have several turns.
    """
    measured, runners = config.measured, config.env_runners_settings
    expected = measured.engine_context = measured.engine_length
    cache = cache_bytes(config, model) if runners.engine == "vllm" else None
    fixed = named_length(config) is not None or _BLOCKS in runners.vllm or config.teacher_settings is not None
    if expected is None or cache is None or fixed or not several:
        return
    on_gpu = engine_is_on_gpu(config)
    if not on_gpu and CACHE_OPTION not in runners.vllm:
        cache = max(cache, CPU_CACHE_BYTES)
    bounds = [model.context, model.short_context, runners.max_context_tokens, runners.vllm.get(_BATCH)]
    bounds += [config.learners_settings.token_budget] if config.TRAINS else []
    most = min((bound for bound in bounds if isinstance(bound, int)), default=expected)
    too_long = bisect.bisect_right(range(most + 1), cache // 2, key=functools.partial(sequence_bytes, config, model))
    measured.engine_context = max(expected, too_long - 1)
    if not on_gpu:
        needed = sequence_bytes(config, model, measured.engine_context)
        measured.engine_cache_bytes = max(measured.engine_cache_bytes or 0, needed)


def needed_gpu_bytes(config: "BaseConfig", model: ModelFacts, use: ContextUse | None) -> int:
    """Return what a GPU must have: `least_gpu_bytes`, and the activations of an update where `use` is known."""
    activations = None if use is None else activation_bytes(config, model, use)
    if use is None or activations is None:
        return least_gpu_bytes(config, model)
    return least_gpu_bytes(config, model, activations, several=microbatch_tokens(config, use)[1])


def gpu_shortage(config: "BaseConfig", model: ModelFacts, use: ContextUse | None = None) -> str:
    """Write how large this machine's smallest GPU is, and what would fit, if it is too small; "" where it is not.

    Nothing is known of the GPUs of a cluster.
    """
    there, needed = available(), needed_gpu_bytes(config, model, use)
    if there is None or there.where != "this machine" or not there.gpus or not needed:
        return ""
    found = found_gpus()
    if found is None or not found.least_bytes or needed + CUDA_BYTES <= found.least_bytes:
        return ""
    which = "the card" if other_card() else "the smallest GPU here"
    small = f"{which} has {gib(found.least_bytes)}, {gib(CUDA_BYTES)} of it for CUDA{NOT_ENOUGH}"
    return f"{small}; fix: {ways_to_fit(config, model, use, found.least_bytes)}"


def ways_to_fit(config: "BaseConfig", model: ModelFacts, use: ContextUse | None, gpu_bytes: int) -> str:
    """Write the fewest settings that make a run fit on GPUs of so many bytes, with what it then needs.

    Args:
        config: of the run.
        model: that is trained.
        use: of its context; None: activations are left out.
        gpu_bytes: memory of the smallest GPU.
    """
    changes = list(_changes(config, model, use, gpu_bytes))
    for count in range(1, len(changes) + 1):
        needs = ((chosen, _needed(config, model, use, chosen)) for chosen in itertools.combinations(changes, count))
        ways = [f"{_text(chosen)} ({gib(needed)})" for chosen, needed in needs if needed + CUDA_BYTES <= gpu_bytes]
        if ways:
            return ", or ".join(ways[:_MOST_WAYS])
    if not changes:
        return _ELSE
    return f"{_ELSE}; {_text(changes)} alone leave it at {gib(_needed(config, model, use, changes))}"


def _changes(
    config: "BaseConfig", model: ModelFacts, use: ContextUse | None, gpu_bytes: int
) -> Iterator[tuple[str, Any]]:
    """Yield settings that save memory, those that change the training least first."""
    module, runners = config.rl_module_settings, config.env_runners_settings
    if use is not None and not module.gradient_checkpointing:
        yield "rl_module.gradient_checkpointing", True
    if use is not None and microbatch_tokens(config, use)[0] > (longest := max(use.row, use.longest)):
        yield "learners.token_budget", longest
    if engine_is_on_gpu(config) and (share := engine_share(config)) is not None:
        least = engine_needs(config, model) / gpu_bytes
        enough = round((math.ceil(least / _SHARE_STEP) + 1) * _SHARE_STEP, 2)
        if (shares_gpu(config) and enough < share) or share < least < enough < 1:
            yield _share_key(config), enough
    if runners.dtype == "float32":
        found = found_gpus()
        old = found is not None and found.below(BFLOAT16_CAPABILITY)
        yield "env_runners.dtype", "float16" if old else "bfloat16"
    full, learners = not module.lora_rank, config.learners_settings
    if full and learners.moments == "float32" and learners.sharding == "none":
        yield "learners.moments", "8bit"
    if full and learners.weights == "float32" and learners.sharding == "none" and module.dtype == "bfloat16":
        yield "learners.weights", "bfloat16"
    if full:
        yield "rl_module.lora_rank", 16
    if module.lora_base == "dtype" and runners.lora_weights == "merged" and learners.sharding == "none":
        yield "rl_module.lora_base", "nf4"


def _share_key(config: "BaseConfig") -> str:
    """Return the setting of the engine's share of its GPU: an option of vLLM's own goes before ours."""
    own = _SHARE in config.env_runners_settings.vllm
    return f"env_runners.vllm.{_SHARE}" if own else f"env_runners.{_SHARE}"


def _text(changes: Sequence[tuple[str, Any]]) -> str:
    settings = [f"{name}={str(value).lower()}" for name, value in changes]
    return " and ".join([", ".join(settings[:-1]), settings[-1]]) if settings[1:] else settings[0]


def _needed(config: "BaseConfig", model: ModelFacts, use: ContextUse | None, changes: Sequence[tuple[str, Any]]) -> int:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes:
        section, _, key = name.partition(".")
        key, _, option = key.partition(".")
        if option:  # of vLLM's own, beside the others
            value = {**config.env_runners_settings.vllm, option: value}
        sections.setdefault(section, {})[key] = value
    return needed_gpu_bytes(config.copy(copy_frozen=False).apply(sections), model, use)
