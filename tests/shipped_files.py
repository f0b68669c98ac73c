"""The configuration files that the project ships, by what they are for."""

from pathlib import Path

from algorithms.config.files import configs_folder


def training_files() -> list[Path]:
    """The shipped files that say how to train; those called `eval_*` are for `python -m algorithms.evaluate`."""
    return sorted(file for file in configs_folder().glob("*.yaml") if not file.name.startswith("eval_"))


def evaluation_files() -> list[Path]:
    """The shipped files for `python -m algorithms.evaluate`."""
    return sorted(configs_folder().glob("eval_*.yaml"))
