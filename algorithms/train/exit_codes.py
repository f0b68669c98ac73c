"""Exit codes, and the errors that end a command in one line instead of a traceback."""

import sys
from collections.abc import Callable

from algorithms.config.errors import ServiceError
from algorithms.train.supervised import ERROR, is_restart, report
from algorithms.utils.errors import InputError, RunError, is_disk_full, is_not_written

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def in_one_line(run: Callable[[], int], retry: str) -> int:
    """Run a command; an error that its user can fix becomes a line on standard error and an exit code.

    Args:
        run: returns the exit code if nothing fails.
        retry: how to continue after a full disk, as in "fix: make room, then …".

    Raises:
        Exception: a defect of ours, as it is; so is an interrupt.
    """
    try:
        code = run()
        sys.stdout.flush()  # of a full disk it is said here, and not on the way out
        return code
    except Exception as error:
        ending = _ending(error, retry)
        if ending is None:
            raise
        code, line = ending
        print(line, file=sys.stderr)
        report(ERROR, line)
        return code


def _ending(error: Exception, retry: str) -> tuple[int, str] | None:
    """Exit code and line; None for a defect of ours."""
    if isinstance(error, ServiceError) and is_restart():  # it was there before
        return FAILED, f"error: {error}"
    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {error}"
    if isinstance(error, RunError):
        return FAILED, f"error: {error}"
    if not is_disk_full(error):
        return None
    said = next(iter(str(error).splitlines()), type(error).__name__)
    what, fix = "No space left on device", "make room"
    if is_not_written(error):
        what, fix = "the history cannot be written", "check the free space, the quota and the health of its disk"
    return FAILED, f"error: {what} ({said}); what was written before is intact; fix: {fix}, then {retry}"
