"""Whether the folder that Ray would take for its session leaves room for the paths of its sockets."""

import os

SHORT = "/tmp/ray"  # Ray's own default, where no variable names another
_VARIABLES = ("RAY_TMPDIR", "TMPDIR")  # the first that is set counts
_MOST_BYTES = 107  # of a socket's path on Linux, see unix(7)
_APPENDED = "/ray/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"  # to that folder, by Ray


def too_long() -> str:
    """Return a line where RAY_TMPDIR, or else TMPDIR, is too long for a Ray of this machine alone; else nothing."""
    name = next((name for name in _VARIABLES if name in os.environ), None)
    most = _MOST_BYTES - len(_APPENDED.format(pid=os.getpid()))
    if name is None or len(os.fsencode(os.environ[name])) <= most:
        return ""
    return (
        f"{name}: {os.environ[name]} is too long for the paths of Ray's sockets, so Ray takes {SHORT}; fix: a "
        f"RAY_TMPDIR of at most {most} bytes, if Ray's files must lie elsewhere"
    )
