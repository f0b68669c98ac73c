"""What ends a script in one line instead of a traceback, and with which exit code."""

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def ending_of(error: Exception, go_on: str) -> tuple[int, str] | None:
    """Exit code and line of an error that its user can do something about; None for a defect of ours.

    Args:
        error: what ended the script.
        go_on: how the script goes on after a disk was full.
    """
    from algorithms.configuration.errors import ConfigError
    from algorithms.grpo.learner_errors import LearnerDied
    from algorithms.grpo.skipped_steps import TooManySkippedSteps
    from algorithms.rollout.driver.errors import NoEnvRunnerLeft, StaleWeights
    from algorithms.rollout.errors import EveryEpisodeFailed
    from algorithms.script.checkpoint_errors import CheckpointError
    from algorithms.script.disk_full import is_disk_full
    from algorithms.script.ray_session import RayDidNotStart

    if isinstance(error, ConfigError | CheckpointError):
        return WRONG_INPUT, f"error: {error}"
    ended = (EveryEpisodeFailed, LearnerDied, NoEnvRunnerLeft, RayDidNotStart, StaleWeights, TooManySkippedSteps)
    if isinstance(error, ended):
        return FAILED, f"error: {error}"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return FAILED, (
        f"error: No space left on device ({said}); what was written before is whole; fix: make room, then {go_on}"
    )
