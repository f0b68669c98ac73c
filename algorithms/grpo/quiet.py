"""Let a user see our lines, not the libraries' start-up chatter."""

import logging
import os
import warnings

_QUIET_ENVIRONMENT = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
}


def hush() -> None:
    """Quieten what is not an error; a variable that the user has set stays as it is. `R3_VERBOSE=1` switches it off."""
    if os.environ.get("R3_VERBOSE"):
        return
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")
    for name in ("ray", "ray.rllib", "ray.tune", "transformers", "datasets", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
