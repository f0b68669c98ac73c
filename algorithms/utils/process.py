"""Set up a process before Ray, torch or vLLM are imported: quiet libraries, and threads that share cores."""

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

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


# Threads that wait by spinning fight over busy cores: on two of them, with two other processes at work, a step took up
# to twice as long. `libgomp` reads this once, when torch is imported.
_SHARED_CORES = {"OMP_WAIT_POLICY": "PASSIVE"}


def prepare() -> None:
    """Set environment variables and loggers; what the user has set stays as it is.

    `R3_VERBOSE=1` shows everything that the libraries print.
    """
    for name, value in _SHARED_CORES.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("R3_VERBOSE"):
        _hush()


@contextlib.contextmanager
def native_stderr_held_back() -> Iterator[None]:
    """Hold back what compiled code writes to standard error, and show it only if the block fails.

    Ray's core reports on RLlib's runner actors there, past every Python logger.
    """
    if os.environ.get("R3_VERBOSE"):
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(original, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)


def _hush() -> None:
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")
    for name in ("ray", "ray.rllib", "ray.tune", "transformers", "datasets", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
