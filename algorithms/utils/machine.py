"""What of this machine a process may use, which a container or a batch system limits."""

import os
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def cores() -> int:
    """Return the cores that this process may use; all of the machine's where the system, such as macOS, names none."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory_bytes(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the bytes of memory that this process's container may use, or the machine's.

    Args:
        limits: files of the control group, as either version of the kernel's interface names them.
    """
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in limits:
        try:
            least = min(least, int(file.read_text("ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return least
