"""Name the checkpoint that a run which could not save its last steps resumes from."""

from collections.abc import Iterator
from contextlib import contextmanager

from algorithms.learner.group import LearnerDied
from algorithms.train.run_directory import RunDirectory, checkpoint_path, checkpoint_steps


def last_checkpoint(directory: RunDirectory) -> str:
    """Return the last checkpoint of a run, in words."""
    steps = checkpoint_steps(directory.checkpoints_folder)
    found = checkpoint_path(directory.checkpoints_folder, steps[-1]) if steps else None
    return f"the last checkpoint: {found}" if found else f"no checkpoint yet: --resume {directory.path} starts again"


@contextmanager
def naming_the_checkpoint(directory: RunDirectory) -> Iterator[None]:
    """Put the last checkpoint behind the line of a lost learner.

    Raises:
        LearnerDied: as the block does, with the longer line.
    """
    try:
        yield
    except LearnerDied as error:
        raise type(error)(f"{error}; {last_checkpoint(directory)}") from error
