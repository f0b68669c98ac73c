"""Settings of the loss that contradict each other. Imports no Ray."""

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.machine_settings import EnvRunnerSettings
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


def check_policy_lag(training: TrainingSettings, env_runners: EnvRunnerSettings) -> None:
    """Check that rollouts can be played ahead, and that the loss knows about it.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if not training.policy_lag:
        return
    if env_runners.num_env_runners == 0:
        raise ConfigError(
            "training.policy_lag: 1 needs env runners of their own, which play while the learner works; "
            "fix: env_runners.num_env_runners=1, or training.policy_lag=0"
        )
    if training.is_cap == 0:
        raise ConfigError(
            "training.policy_lag: 1 trains on rollouts of an older policy, which training.is_cap=0 leaves uncorrected; "
            "fix: training.is_cap=2"
        )
    if env_runners.sleep_while_training:
        raise ConfigError(
            "training.policy_lag: 1 keeps the engines at work while the learners are, and "
            "env_runners.sleep_while_training puts them to sleep; fix: turn off one of them"
        )
