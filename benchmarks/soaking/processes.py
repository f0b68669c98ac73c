"""The processes of a run: its own, those that it started, and Ray's."""

import contextlib
import os
from pathlib import Path

import psutil

DRIVER = "driver"


def of_run(pid: int) -> list[psutil.Process]:
    """Return all processes of the run that was started as `pid` in a session of its own, `pid` itself the first.

    Most are below it in the tree of parents. One whose parent is gone, say that of a killed actor, is still in the
    session. (Graders make a session of their own, and end with their parent.)
    """
    found: dict[psutil.Process, None] = {}
    with contextlib.suppress(psutil.Error):
        own = psutil.Process(pid)
        found = dict.fromkeys([own, *own.children(recursive=True)])
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == pid:
                found.setdefault(process)
    return list(found)


def kind(process: psutil.Process, driver: int) -> str:
    """Return the kind of a process by its title: an actor's class, a script, a module or a program.

    Raises:
        psutil.Error: it is gone.
    """
    if process.pid == driver:
        return DRIVER
    words = process.cmdline()
    title = words[0].split(".")[0].strip() if words else ""
    if title.startswith("ray::"):
        return title
    program = Path(words[0]).name if words else process.name()
    if not program.startswith("python"):
        return program
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return next((Path(word).name for word in words if word.endswith(".py")), program)
