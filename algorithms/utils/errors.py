"""Errors that end a command with one line: those that its user can fix."""

from r3env.printable import printable


class InputError(ValueError):
    """The user's input cannot be used; the message is one line that names it and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__())


class RunError(RuntimeError):
    """A run cannot continue; the message is one line with the reason and the fix."""

    def __str__(self) -> str:
        return printable(super().__str__())


class CheckpointError(InputError):
    """A checkpoint that is missing, incomplete or of another format."""
