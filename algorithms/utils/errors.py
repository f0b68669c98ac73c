"""Errors that end a command in one line: what their user can do something about."""


class InputError(ValueError):
    """What the user gave cannot be used; the message is one line that names it and the fix."""


class RunError(RuntimeError):
    """A run cannot go on; the message is one line that says why, and the fix."""


class CheckpointError(InputError):
    """A checkpoint that is missing, incomplete or of another format."""
