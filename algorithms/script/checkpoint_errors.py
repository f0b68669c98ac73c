"""Errors of checkpoints, apart from the code that needs Ray."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or of another format."""
