"""Settings of the learners that contradict each other. Imports no Ray."""

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.machine_settings import LearnerSettings, RLModuleSettings


def check_learners(learners: LearnerSettings, rl_module: RLModuleSettings) -> None:
    """Check how learners hold the model.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if learners.sharding == "fsdp" and learners.num_learners == 0:
        raise ConfigError(
            "learners.sharding: 'fsdp' shards over learner actors, and learners.num_learners is 0; "
            "fix: learners.num_learners=1, or more"
        )
    if learners.offload and learners.sharding != "fsdp":
        raise ConfigError(
            f"learners.offload: needs shards to offload, and learners.sharding is '{learners.sharding}'; "
            "fix: learners.sharding=fsdp"
        )
    if rl_module.lora_targets and not rl_module.lora_rank:
        raise ConfigError(
            "rl_module.lora_targets: has no effect without an adapter; fix: rl_module.lora_rank=16, or no targets"
        )
