"""Settings that contradict each other. Imports no Ray."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError, shown
from algorithms.config.placement import (
    INT8,
    LEARNER_SHARE,
    RUNNER_SHARE,
    Placement,
    engine_in_int8,
    engine_is_on_gpu,
    engine_share,
    placement,
    sends_adapter,
    shares_gpu,
)
from algorithms.config.sections import EnvironmentSettings, EvaluationSettings

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# Half of it is a carryover, of a beginning and an end.
SHORTEST_CHUNK = 8
# What vLLM makes room for: the next one that holds an adapter's rank.
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _makes_learners(s: Any) -> bool:
    return s.config.TRAINS and not s.config.in_evaluation


def _shares_gpu_0(s: Any) -> bool:
    """Return whether what computes in the driver does so on a GPU that Ray, which does not know, gives an actor."""
    one_in_driver = bool(s.env_runners.num_env_runners) != bool(s.learners.num_learners)
    both_on_gpus = s.learners.num_gpus_per_learner > 0 and engine_is_on_gpu(s.config)
    return _makes_learners(s) and one_in_driver and s.env_runners.engine == "vllm" and both_on_gpus


def _has_actors_on_parts(s: Any) -> bool:
    """Return whether parts of GPUs are of use only when one of each kind lands on every GPU."""
    return s.env_runners.num_env_runners and s.learners.num_learners and shares_gpu(s.config)


def _has_spares(s: Any) -> bool:
    """Return whether there are spares; RLlib's copy for runners of its own, which there are none of, has none."""
    return s.env_runners.spares and not s.config.in_evaluation


def _is_ahead(s: Any) -> bool:
    return s.training.max_off_policy_steps and not s.config.in_evaluation


def _ends_in_warmup(training: Any) -> bool:
    """Return whether a schedule of a given length is over when the warm-up ends; the first counts training steps."""
    steps = training.lr_decay_steps
    return steps is not None and steps * training.passes * training.minibatches <= training.warmup_steps


_BOTH_ON_ONE_GPU = (
    f"and for both on one GPU env_runners.num_gpus_per_env_runner={RUNNER_SHARE} "
    f"learners.num_gpus_per_learner={LEARNER_SHARE}"
)
_LAG = "training.max_off_policy_steps: {training.max_off_policy_steps}"
# Which settings contradict each other, and the line with the fix. Names are those of the sections, and `config`.
_RULES: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (
        lambda s: s.env_runners.sleep_while_training and s.env_runners.engine != "vllm",
        "env_runners.sleep_while_training: the engine {env_runners.engine} cannot sleep; fix: env_runners.engine=vllm",
    ),
    (
        lambda s: (
            s.env_runners.sleep_while_training
            and _has_actors_on_parts(s)
            and placement(s.config) is not Placement.SHARED_GPUS
        ),
        "env_runners.sleep_while_training: {env_runners.num_env_runners} env runners of "
        "{env_runners.num_gpus_per_env_runner:g} and {learners.num_learners} learners of "
        "{learners.num_gpus_per_learner:g} GPUs do not pair up, one of each on a GPU; fix: as many env runners as "
        f"learners, num_gpus_per_env_runner={RUNNER_SHARE} and num_gpus_per_learner={LEARNER_SHARE}",
    ),
    (
        lambda s: _shares_gpu_0(s) and s.learners.num_learners,
        "env_runners.num_env_runners: is 0, so the engine computes in the driver, on GPU 0, which Ray gives to a "
        f"learner as well; fix: env_runners.num_env_runners=1, {_BOTH_ON_ONE_GPU}",
    ),
    (
        _shares_gpu_0,
        "learners.num_learners: is 0, so the learner computes in the driver, on GPU 0, which Ray gives to an engine "
        f"as well; fix: learners.num_learners=1, {_BOTH_ON_ONE_GPU}",
    ),
    (
        lambda s: (
            _makes_learners(s)
            and s.learners.num_learners > 1
            and 0 < s.learners.num_gpus_per_learner <= 0.5
            and placement(s.config) is not Placement.SHARED_GPUS
        ),
        "learners.num_gpus_per_learner: {learners.num_gpus_per_learner:g}: Ray puts two learners on one GPU, where "
        "NCCL does not join them; fix: learners.num_gpus_per_learner=1, or an engine beside each, as in "
        "configs/deepscaler_r1_1p5b_shared.yaml",
    ),
    (
        lambda s: _has_spares(s) and not s.env_runners.num_env_runners,
        "env_runners.spares: {env_runners.spares}, and the only engine is in the driver's process, where no spare can "
        "replace it; fix: env_runners.num_env_runners=1, or env_runners.spares=0",
    ),
    (
        lambda s: _has_spares(s) and placement(s.config) is Placement.SHARED_GPUS,
        "env_runners.spares: {env_runners.spares}, and every engine shares its GPU with a learner, which a spare does "
        "not have; fix: env_runners.spares=0",
    ),
    (
        lambda s: s.env_runners.engine == "vllm" and shares_gpu(s.config) and engine_share(s.config) is None,
        "env_runners.gpu_memory_utilization: is not set, and vLLM would take nearly all of a GPU that a "
        "learner needs too; fix: env_runners.gpu_memory_utilization=0.45",
    ),
    (
        lambda s: s.env_runners.tensor_parallel_size > 1 and s.env_runners.engine != "vllm",
        "env_runners.tensor_parallel_size: the engine {env_runners.engine} cannot split a model; "
        "fix: env_runners.engine=vllm",
    ),
    (
        lambda s: 0 < s.env_runners.num_gpus_per_env_runner < s.env_runners.tensor_parallel_size > 1,
        "env_runners.num_gpus_per_env_runner: {env_runners.num_gpus_per_env_runner:g} for an engine that splits its "
        "model over {env_runners.tensor_parallel_size} GPUs; "
        "fix: env_runners.num_gpus_per_env_runner={env_runners.tensor_parallel_size}",
    ),
    (
        lambda s: sends_adapter(s.config) and engine_is_on_gpu(s.config) and s.env_runners.dtype == "float32",
        "env_runners.dtype: on a GPU vLLM computes an adapter in 16 bits alone; fix: env_runners.dtype=bfloat16, "
        "or env_runners.lora_weights=merged",
    ),
    (
        lambda s: _makes_learners(s) and engine_in_int8(s.config) and s.training.importance_cap == 0,
        f"env_runners.vllm.quantization: {INT8} samples with a rounded policy, which training.importance_cap=0 leaves "
        "uncorrected; fix: training.importance_cap=2",
    ),
    (
        lambda s: sends_adapter(s.config) and engine_in_int8(s.config),
        f"env_runners.vllm.quantization: {INT8} quantizes the weights of each update, and an adapter alone brings "
        "none; fix: env_runners.lora_weights=merged",
    ),
    (
        lambda s: s.env_runners.lora_weights == "adapter" and not s.rl_module.lora_rank,
        "env_runners.lora_weights: 'adapter' has no effect without one; fix: rl_module.lora_rank=16, or "
        "env_runners.lora_weights=merged",
    ),
    (
        lambda s: (
            s.env_runners.lora_weights == "adapter"
            and (s.env_runners.engine != "vllm" or s.rl_module.lora_rank > VLLM_LORA_RANKS[-1])
        ),
        f"env_runners.lora_weights: only vLLM takes an adapter alone, of rank {VLLM_LORA_RANKS[-1]} at most; fix: "
        "env_runners.lora_weights=merged",
    ),
    (
        lambda s: s.env_runners.lora_weights == "adapter" and s.rl_module.lora_base == "nf4",
        "env_runners.lora_weights: the engine's base is not in 4 bits, and rl_module.lora_base=nf4 trains beside "
        "one that is; fix: env_runners.lora_weights=merged",
    ),
    (
        lambda s: s.learners.sharding == "fsdp" and s.learners.num_learners == 0,
        "learners.sharding: 'fsdp' shards over learner actors, and learners.num_learners is 0; "
        "fix: learners.num_learners=1, or more",
    ),
    (
        lambda s: s.learners.offload and s.learners.sharding != "fsdp",
        "learners.offload: needs shards to offload, and learners.sharding is '{learners.sharding}'; "
        "fix: learners.sharding=fsdp",
    ),
    (
        lambda s: s.learners.moments == "8bit" and s.learners.sharding == "fsdp",
        "learners.moments: '8bit' steps whole weights, and learners.sharding=fsdp splits them; "
        "fix: learners.moments=float32",
    ),
    (
        lambda s: s.learners.weights == "bfloat16" and s.learners.sharding == "fsdp",
        "learners.weights: 'bfloat16' steps whole weights, and learners.sharding=fsdp splits them; "
        "fix: learners.weights=float32",
    ),
    (
        lambda s: s.rl_module.lora_base == "nf4" and not s.rl_module.lora_rank,
        "rl_module.lora_base: 'nf4' is for the weights under an adapter; fix: rl_module.lora_rank=16, or "
        "rl_module.lora_base=dtype",
    ),
    (
        lambda s: s.rl_module.lora_base == "nf4" and s.learners.sharding == "fsdp",
        "rl_module.lora_base: 'nf4' keeps whole layers, and learners.sharding=fsdp splits them; "
        "fix: rl_module.lora_base=dtype",
    ),
    (
        lambda s: s.learners.weights == "bfloat16" and s.rl_module.lora_rank,
        "learners.weights: 'bfloat16' is for weights that are trained, and rl_module.lora_rank trains an adapter "
        "beside them; fix: learners.weights=float32",
    ),
    (
        lambda s: s.learners.weights == "bfloat16" and s.rl_module.dtype == "float32",
        "learners.weights: 'bfloat16' computes in it, and rl_module.dtype is float32; fix: rl_module.dtype=bfloat16, "
        "or learners.weights=float32",
    ),
    (
        lambda s: s.rl_module.lora_targets and not s.rl_module.lora_rank,
        "rl_module.lora_targets: has no effect without an adapter; fix: rl_module.lora_rank=16, or no targets",
    ),
    (
        lambda s: s.training.kl_in == "reward" and not s.training.beta,
        "training.kl_in: reward has no effect with training.beta=0; fix: training.beta=0.01, or training.kl_in=loss",
    ),
    (
        lambda s: 0 < s.training.importance_cap < 1 and s.training.importance_mode != "mask",
        "training.importance_cap: {training.importance_cap:g} lowers the weight of responses that engine and trainer "
        "agree on; fix: training.importance_cap=2",
    ),
    (
        lambda s: s.training.importance_mode == "mask" and s.training.importance_cap <= 1,
        "training.importance_cap: with training.importance_mode=mask, {training.importance_cap:g} leaves out "
        "responses that engine and trainer agree on; fix: training.importance_cap=2",
    ),
    (
        lambda s: s.training.importance_floor > 0 and s.training.importance_mode != "mask",
        "training.importance_floor: {training.importance_floor:g} has no effect with "
        "training.importance_mode={training.importance_mode}; fix: training.importance_mode=mask",
    ),
    (
        lambda s: s.env_runners.response_chunks > 1 and s.env_runners.context_response < SHORTEST_CHUNK,
        "env_runners.response_chunks: {env_runners.response_chunks} cut {env_runners.max_response_tokens} tokens "
        f"(env_runners.max_response_tokens) into chunks of fewer than {SHORTEST_CHUNK}; fix: fewer chunks",
    ),
    (
        lambda s: s.env_runners.response_chunks > 1 and s.env_runners.max_context_tokens is not None,
        "env_runners.max_context_tokens: {env_runners.max_context_tokens} is counted in whole responses, and "
        "env_runners.response_chunks={env_runners.response_chunks} divides them; fix: env_runners.response_chunks=1",
    ),
    (
        lambda s: s.evaluation.temperature == 0 and (s.evaluation.samples > 1 or max(s.evaluation.k) > 1),
        "evaluation.temperature: 0 decodes greedily, and all responses to a problem are the same; fix: "
        "evaluation.samples=1 and evaluation.k=[1]",
    ),
    (
        lambda s: s.config.TRAINS and s.training.lr_schedule == "constant" and s.training.lr_min_share,
        "training.lr_min_share: {training.lr_min_share:g} has no effect with training.lr_schedule=constant; "
        "fix: training.lr_schedule=cosine",
    ),
    (
        lambda s: s.training.lr_schedule != "constant" and _ends_in_warmup(s.training),
        "training.lr_decay_steps: {training.lr_decay_steps:g} training steps are over before the "
        "{training.warmup_steps:g} optimizer steps of training.warmup_steps, and the rest would have the rate of the "
        "schedule's end; fix: a larger training.lr_decay_steps",
    ),
    (
        lambda s: s.config.TRAINS and s.training.lr_schedule == "constant" and s.training.lr_decay_steps,
        "training.lr_decay_steps: {training.lr_decay_steps:g} has no effect with training.lr_schedule=constant; "
        "fix: training.lr_schedule=cosine",
    ),
    (
        lambda s: s.config.TRAINS and s.training.lr_schedule != "constant" and s.config.schedule_steps is None,
        "training.lr_schedule: {training.lr_schedule} needs the number of training steps, which only the command knows "
        "from run.steps; fix: training.lr_decay_steps=100, or how many there will be",
    ),
    (
        lambda s: _is_ahead(s) and s.env_runners.num_env_runners == 0,
        f"{_LAG} needs remote env runners, which roll out while the learner works; fix: "
        "env_runners.num_env_runners=1, or training.max_off_policy_steps=0",
    ),
    (
        lambda s: _is_ahead(s) and s.training.importance_cap == 0,
        f"{_LAG} trains on rollouts of an older policy, which training.importance_cap=0 "
        "leaves uncorrected; fix: training.importance_cap=2",
    ),
    (
        lambda s: _is_ahead(s) and s.env_runners.sleep_while_training,
        f"{_LAG} keeps the engines running while the learners train, and env_runners.sleep_while_training stops "
        "them; fix: turn off one of them",
    ),
)


def check_rules(config: "BaseConfig") -> None:
    """Check the settings that have a meaning only together, and layouts that Ray or vLLM would refuse or wait for.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    sections = {section: getattr(config, f"{section}_settings") for section in config.sections}
    for contradict, line in _RULES:
        if contradict(SimpleNamespace(config=config, **sections)):
            raise ConfigError(line.format(**sections))


def check_parts(evaluation: EvaluationSettings, environment: EnvironmentSettings) -> None:
    """Check that held-out problems go to parts of a mixture that take them.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    described = environment.options.get("environments")
    parts = described if isinstance(described, Mapping) else {}
    if evaluation.data == {}:
        raise ConfigError("evaluation.data: names no part of a mixture; fix: name one, or evaluation.data=null")
    if isinstance(evaluation.data, dict):
        for name in evaluation.data:
            if not isinstance(parts.get(name), Mapping):
                fix = f"name one of {', '.join(map(str, parts))}" if parts else "name the parts there"
                raise ConfigError(
                    f"evaluation.data: {shown(name)} is no part of environment.options.environments; fix: {fix}"
                )
    elif evaluation.data and parts and all(map(_has_data, parts.values())):
        example = ", ".join(f"{name}: SOURCE" for name in parts)
        raise ConfigError(
            f"evaluation.data: {shown(evaluation.data)} reaches no part of the mixture, as each has data of its own; "
            f"fix: name the held-out problems by part: {{{example}}}"
        )


def _has_data(part: Any) -> bool:
    options = part.get("options") if isinstance(part, Mapping) else None
    return isinstance(options, Mapping) and options.get("data") is not None


def check_second_tries(evaluation: EvaluationSettings, max_turns: int) -> None:
    """Check that a second attempt is possible: that nothing else follows the first answer.

    Raises:
        ConfigError: answers have several turns already.
    """
    if evaluation.reflection and max_turns > 1:
        raise ConfigError(
            f"evaluation.reflection: true with episodes of up to {max_turns} turns, which already have further "
            "attempts; fix: environment.max_turns=1 or evaluation.reflection=false"
        )
