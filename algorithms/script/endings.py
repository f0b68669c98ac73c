"""What ends a script in one line instead of a traceback, and with which exit code."""

import sys
from collections.abc import Callable

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def in_one_line(run: Callable[[], int], go_on: str) -> int:
    """Run a script; an error that its user can do something about is a line on standard error and an exit code.

    Args:
        run: gives the exit code where nothing is wrong.
        go_on: how the script goes on after a disk was full.

    Raises:
        Exception: a defect of ours, as it is; so is an interrupt.
    """
    try:
        return run()
    except Exception as error:
        ending = _ending_of(error, go_on)
        if ending is None:
            raise
        code, line = ending
        print(line, file=sys.stderr)
        return code


def _ending_of(error: Exception, go_on: str) -> tuple[int, str] | None:
    """Exit code and line; None for a defect of ours."""
    from algorithms.configuration.errors import ConfigError
    from algorithms.grpo.learner_errors import LearnerDied
    from algorithms.grpo.skipped_steps import TooManySkippedSteps
    from algorithms.rollout.driver.errors import NoEnvRunnerLeft, StaleWeights
    from algorithms.rollout.errors import EveryEpisodeFailed
    from algorithms.script.checkpoint_errors import CheckpointError
    from algorithms.script.disk_full import is_disk_full, is_not_written
    from algorithms.script.ray_session import RayDidNotStart

    if isinstance(error, ConfigError | CheckpointError):
        return WRONG_INPUT, f"error: {error}"
    ended = (EveryEpisodeFailed, LearnerDied, NoEnvRunnerLeft, RayDidNotStart, StaleWeights, TooManySkippedSteps)
    if isinstance(error, ended):
        return FAILED, f"error: {error}"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    what, fix = "No space left on device", "make room"
    if is_not_written(error):
        what, fix = "the history cannot be written", "check the room, the quota and the health of its disk"
    return FAILED, f"error: {what} ({said}); what was written before is whole; fix: {fix}, then {go_on}"
