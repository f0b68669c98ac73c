"""Set up a process before Ray, torch or vLLM are imported: quiet libraries, and threads that share cores."""

import contextlib
import ctypes
import gc
import logging
import os
import pwd
import stat
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from algorithms.utils.errors import InputError, RunError
from r3env.streams import guarded

_logger = logging.getLogger(__name__)

_QUIET_ENVIRONMENT = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
}


_C_LIBRARY = ctypes.CDLL(None)

_FASTER = {
    # Threads that wait by spinning fight over busy cores: on two of them, with two other processes at work, a step took
    # up to twice as long. `libgomp` reads this once, when torch is imported.
    "OMP_WAIT_POLICY": "PASSIVE",
    # The C library gives large blocks back at once, and Linux clears each page when it is touched again. So torch
    # asks for pages of 2 MiB instead of 4 KiB: a sixth less time for a step of configs/laptop.yaml.
    "THP_MEM_ALLOC_ENABLE": "1",
}

# Imports make a million objects that stay; to look for garbage after each 700 of them takes a seventh of a start.
_NEW_OBJECTS = 50_000


def prepare() -> None:
    """Set environment variables and loggers; keep what the user has set.

    `R3_VERBOSE=1` shows everything that the libraries print.
    """
    _need_a_working_folder()
    gc.set_threshold(_NEW_OBJECTS)
    for name, value in _FASTER.items():
        os.environ.setdefault(name, value)
    _have_a_home()
    if not os.environ.get("R3_VERBOSE"):
        _hush()


@contextlib.contextmanager
def native_stderr_held_back() -> Iterator[TextIO]:
    """Hold back the standard error of compiled code; show it only if the block fails without an error line.

    Ray's core reports on RLlib's runner actors there, past every Python logger. What is logged in this process is
    written at once all the same.

    Yields:
        The real standard error, for what has to be seen at once.
    """
    if os.environ.get("R3_VERBOSE"):
        yield sys.stderr
        return
    sys.stderr.flush()
    original = os.dup(2)
    real = guarded(original, sys.stderr)
    with tempfile.TemporaryFile() as held:
        seen = real if _writes_to(sys.stderr, 2) else sys.stderr
        os.dup2(held.fileno(), 2)
        try:
            # RLlib reports an actor that fails in its constructor by whole tracebacks, several times.
            with _logging_goes_to(seen), logger_level("ray.rllib", logging.CRITICAL):
                yield seen
        except (InputError, RunError):  # one line that says all
            raise
        except BaseException:
            real.flush()
            held.seek(0)
            real.write(held.read().decode("utf-8", "replace"))
            raise
        finally:
            sys.stderr.flush()
            real.flush()
            os.dup2(original, 2)
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), original)
            # A thread that Ray holds up may still write to `real`: until nobody does, no file gets this number.
            weakref.finalize(real, os.close, original)


def _writes_to(stream: Any, descriptor: int) -> bool:
    """Return whether a text stream ends in this descriptor; a test's substitute for standard error does not."""
    try:
        return bool(stream.fileno() == descriptor)
    except (AttributeError, OSError, ValueError):
        return False


@contextlib.contextmanager
def _logging_goes_to(stream: TextIO) -> Iterator[None]:
    """Have the root logger's handlers for standard error, and the one of last resort, write to `stream`."""
    changed = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    ]
    last = logging.lastResort
    for handler in changed:
        handler.setStream(stream)
    if last is not None:
        logging.lastResort = logging.StreamHandler(stream)
        logging.lastResort.setLevel(last.level)
        logging.lastResort.setFormatter(last.formatter)
    try:
        yield
    finally:
        logging.lastResort = last
        for handler in changed:
            handler.setStream(sys.stderr)


def stat_fields(pid: int | str) -> list[str]:
    """Return what Linux's `/proc/PID/stat` says behind a process's name: state, parent, process group and so on.

    Raises:
        OSError: there is no such process, or another system.
    """
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def return_free_memory() -> None:
    """Give the system back what the C library keeps of freed memory; does nothing where it has no `malloc_trim`.

    glibc gives each of many threads an arena of its own, whose free pages it keeps. This takes milliseconds.
    """
    if trim := getattr(_C_LIBRARY, "malloc_trim", None):
        trim(ctypes.c_size_t(0))


def may(path: str | Path, mode: int) -> bool:
    """Whether this process may use a path so (`os.W_OK`, …), with the rights that it was given beside its user's."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


@contextlib.contextmanager
def logger_level(name: str, level: int) -> Iterator[None]:
    """Let a logger take records from this level on."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def _need_a_working_folder() -> None:
    """End a process whose working folder was deleted: importing torch would end it, with a word on oneMKL alone."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print("error: the working folder is gone; fix: cd to one that exists", file=sys.stderr)
        sys.exit(2)


def _have_a_home() -> None:
    """Name another home where this user's is no folder, or cannot be written; libraries fail without one.

    As in a container with `--user`, whose number no passwd entry has.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", str(os.getuid()))  # else torch asks for the entry
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.path.isdir(home) and may(home, os.W_OK | os.X_OK):
        return
    models = os.path.join(home, ".cache", "huggingface")
    if os.path.isdir(models):  # which may be read there
        os.environ.setdefault("HF_HOME", models)
    os.environ["HOME"] = _folder_of_user()
    _logger.warning(
        "HOME: %s is no folder that can be written, so libraries write to %s; fix: set HOME to one that can",
        home,
        os.environ["HOME"],
    )


def _folder_of_user() -> str:
    """Return a folder for temporary files that is this user's alone, the same in each process."""
    folder = os.path.join(tempfile.gettempdir(), f"r3-grpo-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_ours else tempfile.mkdtemp(prefix="r3-grpo-")


def _hush() -> None:
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")
    for name in ("ray", "ray.rllib", "ray.tune", "transformers", "datasets", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
