"""The additional requirements of vLLM for single families of models."""

import importlib.util
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError
from algorithms.models.names import ModelFacts
from algorithms.preflight.memory import available

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# Their code in vLLM imports that of their towers for images, also for the text alone.
_NEED_TORCHVISION = {"Qwen3_5ForCausalLM"}
_BFLOAT16_ON_CPU = {"Qwen3_5ForCausalLM"}


def validate_vllm_model(config: "BaseConfig", model: ModelFacts) -> None:
    """Check that the vLLM of this machine can run the model; a cluster that is joined later is not checked.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    runners, there = config.env_runners_settings, available()
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
