"""The process of `examples.sandbox`: read a job, set the limits, run the code, write one line of JSON per result."""

import builtins
import importlib
import io
import json
import os
import resource
import sys

# Loaded while files can still be opened: the code can import these, and hardly any other.
_FOR_THE_CODE = (
    "bisect collections datetime decimal fractions functools heapq itertools math operator random re statistics "
    "string time typing"
)
# Calls that act on files or processes by name, so that nothing needs to be opened for them.
_REFUSED = ("ctypes.", "gc.", "os.", "pty.", "resource.", "shutil.", "signal.", "socket.", "subprocess.")
_NOBODY = 65534


def main() -> None:
    """Run the job that standard input holds."""
    job = json.load(sys.stdin)
    for module in _FOR_THE_CODE.split():
        importlib.import_module(module)
    _fence(job)
    os.write(1, b"ready\n")
    sys.stdout = io.StringIO()  # what the code prints must not get between the results
    names: dict[str, object] = {"__name__": "answer", "__builtins__": builtins}
    exec(compile(job["code"], "answer.py", "exec"), names)
    function = names[job["function"]]
    for arguments in job["calls"]:
        os.write(1, json.dumps(function(*arguments)).encode() + b"\n")  # type: ignore[operator]


def _fence(job: dict[str, int]) -> None:
    """Without a way back: the hard limits go down with the soft ones, and root, who could lift them, is given up."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)  # of root these set the saved id too
        os.setuid(_NOBODY)
    for kind, amount in (
        (resource.RLIMIT_CPU, job["cpu_s"]),
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["output_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # neither processes nor threads
        (resource.RLIMIT_NOFILE, 0),  # no file, pipe or socket beyond those that are open
    ):
        resource.setrlimit(kind, (amount, amount))
    sys.addaudithook(_refuse)


def _refuse(event: str, _: object) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} is not allowed here")


main()
