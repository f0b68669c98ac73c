"""An evaluation that fails while a run trains: say which one it was, and how to continue."""

from collections.abc import Iterator
from contextlib import contextmanager

from algorithms.learner.group import LearnerDied
from algorithms.utils.errors import InputError, RunError


class EvaluationFailed(RunError):
    """An evaluation of a run failed; the steps before it are kept."""


@contextmanager
def naming_the_evaluation(when: str, how_to_resume: str) -> Iterator[None]:
    """Put the evaluation in front of an error's line, and behind it how to continue; a defect of ours stays as it is.

    Args:
        when: the evaluation was, as in "after step 3".
        how_to_resume: what to do once the cause is fixed.

    Raises:
        EvaluationFailed: in place of an error that its user can fix.
    """
    try:
        yield
    except LearnerDied:  # no evaluation's fault
        raise
    except (InputError, RunError) as error:
        raise EvaluationFailed(f"the evaluation {when} failed: {error}; then {how_to_resume}") from error
