"""Settings of the loss that contradict each other. Imports no Ray."""

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.settings import TrainingSettings


def check_loss(training: TrainingSettings) -> None:
    """Check the settings of section `training` that have a meaning only together.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if training.objective == "cispo" and training.dual_clip is not None:
        raise ConfigError(
            "training.dual_clip: has no effect with training.objective=cispo, which bounds every weight already; "
            "fix: training.dual_clip=null"
        )
    if training.is_mode == "mask" and training.is_cap <= 1:
        raise ConfigError(
            f"training.is_cap: with training.is_mode=mask, {training.is_cap:g} leaves out responses that engine and "
            "trainer agree on; fix: training.is_cap=2"
        )
    if training.is_floor > 0 and training.is_mode != "mask":
        raise ConfigError(
            f"training.is_floor: {training.is_floor:g} has no effect with training.is_mode={training.is_mode}; "
            "fix: training.is_mode=mask"
        )
