"""The configuration of a supervised start, and what can be checked before anything is loaded."""

from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, ClassVar

from algorithms.config.errors import ConfigError
from algorithms.config.schema import Affects, Sections, Settings, setting, settings_that_affect
from algorithms.config.sections import SECTIONS
from algorithms.evaluation.config import move_gpu_to_engine
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.model import check_targets
from algorithms.models.causal_lm import empty_causal_lm, read_config
from algorithms.models.names import resolve_model


class SFTSettings(Settings):
    """A supervised start (`python -m algorithms.sft`): the training data's worked solutions, imitated."""

    solution: str | None = setting(
        None,
        "Column of `environment.data` with worked solutions; null: the one of its preset, or `solution`. One without "
        "a final answer gets the reference answer as its last line; one that the environment grades as incorrect is "
        "left out.",
    )
    epochs: float = setting(1.0, "Passes over the rows.", hparam=True, gt=0)
    steps: int | None = setting(None, "Optimizer steps, in place of `epochs`; null: what `epochs` gives.", ge=1)
    rows: int | None = setting(None, "Maximum number of rows to train on, evenly spaced in the data; null: all.", ge=1)
    max_tokens: int | None = setting(
        None,
        "Longer solutions, end token included, are left out; null: `env_runners.max_response_tokens`, beyond which a "
        "rollout is truncated.",
        ge=1,
    )
    batch_size: int = setting(16, "Rows per optimizer step.", hparam=True, ge=1)
    micro_batch_size: int = setting(
        4, "Rows computed at a time, to save memory; must divide `batch_size` unless it is larger.", ge=1
    )
    lr: float = setting(2e-5, "Learning rate of AdamW; it falls linearly to 0.", hparam=True, gt=0)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises linearly from 0.", hparam=True, ge=0
    )
    held_out: int = setting(
        64,
        "Rows set aside, evenly spaced and at most a tenth, whose loss is measured before and after, and every "
        "`evaluation.interval` steps; 0: none.",
        ge=0,
    )


class SFTConfig(GRPOConfig):
    """The configuration of `python -m algorithms.sft`: a training configuration's sections, and `sft`."""

    SECTIONS: ClassVar[Sections] = MappingProxyType({**SECTIONS, "sft": SFTSettings})

    sft_settings: SFTSettings

    def check_settings(self) -> None:
        """Check rules between settings, those of section `sft` included; raises ConfigError."""
        super().check_settings()
        if self.rl_module_settings.lora_base == "nf4":
            raise ConfigError(
                "rl_module.lora_base: a supervised start trains beside weights as they are; "
                "fix: rl_module.lora_base=dtype"
            )
        settings = self.sft_settings
        if settings.batch_size % min(settings.micro_batch_size, settings.batch_size):
            sizes = range(1, settings.micro_batch_size + 1)
            fix = max(size for size in sizes if settings.batch_size % size == 0)
            raise ConfigError(
                f"sft.micro_batch_size: {settings.micro_batch_size} does not divide sft.batch_size, "
                f"{settings.batch_size}; fix: sft.micro_batch_size={fix}"
            )


def without_learners(config: SFTConfig) -> SFTConfig:
    """Return a copy without settings of RLlib's learners, as TRL trains in this process; the engine gets their GPU."""
    copy: SFTConfig = config.copy(copy_frozen=False)
    without: dict[str, dict[str, Any]] = {}
    for name, default in settings_that_affect(SECTIONS, Affects.LEARNERS).items():
        section, _, key = name.partition(".")
        without.setdefault(section, {})[key] = default
    copy.apply(without)
    move_gpu_to_engine(copy)
    return copy


def check_layers(config: SFTConfig) -> None:
    """Check that the model has the layers that are to get an adapter.

    Raises:
        ConfigError: it has not.
    """
    module = config.rl_module_settings
    model = read_config(resolve_model(module.model), module.revision, module.trust_remote_code)
    try:
        check_targets(empty_causal_lm(model, module.trust_remote_code), module.lora_targets)
    except ValueError as error:
        raise ConfigError(f"rl_module.lora_targets: {error}") from error


def check_installed() -> None:
    """Check that the extra `sft` is there.

    Raises:
        ConfigError: a package is missing.
    """
    for package in ("trl", "peft"):
        if find_spec(package) is None:
            raise ConfigError(f"algorithms.sft: {package} is not installed; fix: pip install -e '.[sft]'")
