"""`--check`: print what a configuration would run where, and check it before anything is started."""

import importlib.util
import logging
import platform
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError, shown
from algorithms.config.placement import sends_adapter
from algorithms.models.names import ModelFacts, check_model, errors_named, fetch_model, resolve_model, validate_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.context_window import (
    ContextUse,
    context_use,
    engine_length,
    validate_context,
    validate_engine_context,
)
from algorithms.preflight.description import CheckResult, describe
from algorithms.preflight.environments import EnvironmentFacts, validate_environment
from algorithms.preflight.fitting import gpu_shortage, open_context, validate_cache
from algorithms.preflight.memory import gpu_memory
from algorithms.preflight.resources import (
    USE_A_GPU,
    available,
    leaves_gpus_idle,
    reserved,
    validate_resources,
    vllm_problem,
)

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from algorithms.config.machine import RLModuleSettings
    from algorithms.config.sections import RunSettings


__all__ = ["CheckResult", "check", "validate_environment", "validate_model", "validate_start"]

_logger = logging.getLogger(__name__)


def validate_start(config: "BaseConfig") -> None:
    """Check everything that a run needs, and fetch its model, before Ray starts. Unused and small GPUs cause warnings.

    Raises:
        ConfigError: one line that names the setting, the model, the environment or the data.
    """
    config.check_settings()
    validate_resources(config)
    _warn_of_idle_gpus(config)
    if config.env_runners_settings.engine == "vllm" and (problem := vllm_problem()):
        _logger.warning(problem)
    model = validate_inputs(config)
    if model is not None:
        _warn_of_small_gpus(config, model)


def validate_inputs(config: "BaseConfig") -> ModelFacts | None:
    """Check model, teacher, environment and data, and fetch what is not there; return what is known of the model.

    Raises:
        ConfigError: as `validate_start`.
    """
    model = validate_model(config)
    environment = validate_environment(config)
    teacher = validate_teacher(config, model)
    if model is not None:
        validate_teacher_context(config, teacher, model, validate_sequences(config, model, environment).longest)
    fetch_model(config.rl_module_settings)
    fetch_teacher(config)
    return model


def measure_engine(config: "BaseConfig") -> None:
    """Measure a vLLM engine's start arguments, if no check has on this machine."""
    measured = config.measured  # by a checkpoint of another machine, perhaps, whose cache held another context
    known = measured.engine_context is not None and measured.host == platform.node()
    if config.env_runners_settings.engine == "vllm" and not known:
        model = validate_model(config)
        if model is not None:
            validate_sequences(config, model, validate_environment(config))


def validate_sequences(config: "BaseConfig", model: ModelFacts, environment: EnvironmentFacts) -> ContextUse:
    """Check that the longest sequences fit into the model and an engine's cache; note their length in `config`.

    Raises:
        ConfigError: they do not, or the tokenizer does not go with the model.
    """
    use = context_use(config, environment, model.context)
    validate_context(config, model, use)
    validate_engine_context(config, use)
    _validate_stop_tokens(config, model)
    validate_vllm_model(config, model)
    config.measured.engine_length = engine_length(config, model.context, use)
    validate_cache(config, model, use)
    config.measured.host = platform.node()
    open_context(config, model, several=environment.max_turns > 1 or environment.has_own_end)
    return use


def _validate_stop_tokens(config: "BaseConfig", model: ModelFacts) -> None:
    for token in config.env_runners_settings.stop_token_ids:
        if model.vocabulary is not None and token >= model.vocabulary:
            raise ConfigError(
                f"env_runners.stop_token_ids: {token} is no token of {model.name}, whose ids end at "
                f"{model.vocabulary - 1}; fix: an id of its tokenizer, or env_runners.stop for a text"
            )


def warn_of_cluster(config: "BaseConfig") -> None:
    """Warn of what is unknown before the cluster is joined: actors that may wait without end, or idle GPUs."""
    needed, there = reserved(config), available()
    if there is not None and (needed.cpus > there.cpus or needed.gpus > there.gpus):
        _logger.warning(
            "%s has %s, and the run reserves %s: it waits for nodes to join, without end if none does; fix: fewer "
            "env runners or learners, or less for each (env_runners.num_gpus_per_env_runner and the like)",
            there.where,
            there,
            needed,
        )
    _warn_of_idle_gpus(config)


def _warn_of_idle_gpus(config: "BaseConfig") -> None:
    there = available()
    if there is not None and leaves_gpus_idle(config, there):
        _logger.warning(
            "%s has %s, and the run reserves no GPU: learners work on the CPU; fix: %s", there.where, there, USE_A_GPU
        )


def _warn_of_small_gpus(config: "BaseConfig", model: ModelFacts) -> None:
    if small := gpu_shortage(config, model):
        _logger.warning("GPU memory: %s; %s", gpu_memory(config, model), small)


def check(config: "BaseConfig", run_settings: "RunSettings") -> CheckResult:
    """Describe what a configuration would start, and whether the machine suffices for it.

    A model on the Hub that cannot be reached is no error.

    Raises:
        ConfigError: as `validate_start`; missing GPUs and engines are reported, not raised.
    """
    config.check_settings()
    model = validate_model(config, unreachable_ok=True)
    teacher = validate_teacher(config, model, unreachable_ok=True)
    environment = validate_environment(config, fetch=False, trial=True)
    use = None if model is None else validate_sequences(config, model, environment)
    if model is not None and use is not None:
        validate_teacher_context(config, teacher, model, use.longest)
    return describe(config, run_settings, environment, model, use)


def validate_teacher(
    config: "BaseConfig", model: ModelFacts | None, *, unreachable_ok: bool = False
) -> ModelFacts | None:
    """Check the teacher of a configuration, and note its size in `config`; None if it has none, or it is out of reach.

    Args:
        config: the configuration.
        model: the policy's size; None where it could not be reached: then vocabularies are not compared.
        unreachable_ok: whether a Hub model may be neither cached nor reachable.

    Raises:
        ConfigError: one line that names the setting: it is no model, or its tokens are not the policy's.
    """
    settings = config.teacher_settings
    if settings is None:
        return None
    with errors_named(config.teacher_setting):
        teacher = check_model(settings, unreachable_ok=unreachable_ok)
    if teacher is None:
        return None
    config.measured.teacher_parameters = teacher.parameters
    if model is not None:
        _check_vocabulary(config, settings, teacher)
    return teacher


def validate_teacher_context(config: "BaseConfig", teacher: ModelFacts | None, model: ModelFacts, longest: int) -> None:
    """Check that a teacher, if there is one, has a context for the longest sequences of the policy.

    Raises:
        ConfigError: it has not.
    """
    tokens = min(longest, model.context or longest)
    if teacher is not None and teacher.context is not None and teacher.context < tokens:
        raise ConfigError(
            f"{config.teacher_setting}: {shown(teacher.name)} has a context of {teacher.context} tokens, and prompt "
            f"and response have up to {tokens}; fix: a teacher with a longer context, or a smaller "
            "env_runners.max_response_tokens"
        )


def fetch_teacher(config: "BaseConfig") -> None:
    """Download a teacher from the Hub, if there is one; raises ConfigError where that fails."""
    if config.teacher_settings is not None:
        with errors_named(config.teacher_setting):
            fetch_model(config.teacher_settings)


def _check_vocabulary(config: "BaseConfig", settings: "RLModuleSettings", teacher: ModelFacts) -> None:
    module = config.rl_module_settings
    own, other = (
        load_tokenizer(resolve_model(each.model), each.revision, each.trust_remote_code).get_vocab()
        for each in (module, settings)
    )
    different = next((token for token, number in own.items() if other.get(token) != number), None)
    too_few = teacher.vocabulary is not None and max(own.values(), default=0) >= teacher.vocabulary
    if different is None and not too_few:
        return
    what = f"{shown(different)} is another token" if different is not None else "it has too few tokens"
    raise ConfigError(
        f"{config.teacher_setting}: {shown(settings.model)} does not use the tokens of {shown(module.model)} "
        f"({what}); fix: name a model with the same tokenizer"
    )


# Their code in vLLM imports that of their towers for images, also for the text alone.
_NEED_TORCHVISION = {"Qwen3_5ForCausalLM"}
_BFLOAT16_ON_CPU = {"Qwen3_5ForCausalLM"}
# transformers 5 fuses their experts under names that vLLM's model does not load.
_OTHER_NAMES = {"MixtralForCausalLM", "MiniMaxM2ForCausalLM"}


def validate_vllm_model(config: "BaseConfig", model: ModelFacts) -> None:
    """Check that vLLM takes the model's weights, and that of this machine, not of a cluster joined later, can run it.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    runners, there = config.env_runners_settings, available()
    pushed = config.TRAINS and not sends_adapter(config)
    if pushed and runners.engine == "vllm" and model.architecture in _OTHER_NAMES:
        raise ConfigError(
            f"env_runners.engine: vLLM does not take the trained experts of {model.architecture} under the names that "
            "transformers gives them; fix: env_runners.engine=transformers, or an adapter (rl_module.lora_rank=16 "
            "env_runners.lora_weights=adapter)"
        )
    if runners.engine != "vllm" or there is None or there.where != "this machine":
        return
    if model.architecture in _NEED_TORCHVISION and importlib.util.find_spec("torchvision") is None:
        raise ConfigError(
            f"env_runners.engine: vLLM needs torchvision for {model.architecture}; fix: pip install torchvision, in "
            "the build of the torch that is installed; or env_runners.engine=transformers"
        )
    if model.architecture in _BFLOAT16_ON_CPU and not there.gpus and runners.dtype == "float32":
        raise ConfigError(
            f"env_runners.dtype: on a CPU vLLM runs {model.architecture} in bfloat16 only; "
            "fix: env_runners.dtype=bfloat16, or env_runners.engine=transformers"
        )
