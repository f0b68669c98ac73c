"""What `--model` and `--data` name, before anything is read of it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorithms.configuration.errors import ConfigError


def run_file(model: str | None) -> Path | None:
    """The configuration of a run of the training script; None where `--model` names something else."""
    file = Path(model or "").expanduser() / "config.yaml"
    return file if model and file.is_file() else None


def check_model(model: str | None) -> None:
    """Refuse the folders beside a model that are easily taken for it.

    Raises:
        ConfigError: a checkpoint, a folder of checkpoints, or a folder of runs; the line names what is meant.
    """
    folder = Path(model or "").expanduser()
    if not model or not folder.is_dir() or (folder / "config.json").is_file():
        return
    if _is_checkpoint(folder):
        raise ConfigError(f"--model: {folder} is a checkpoint, with more in it than the model; fix: {_fix(folder)}")
    checkpoints = sorted(entry for entry in folder.iterdir() if _is_checkpoint(entry))
    if checkpoints:
        raise ConfigError(f"--model: {folder} holds checkpoints; fix: {_fix(checkpoints[-1])}")
    runs = [entry for entry in folder.iterdir() if (entry / "config.yaml").is_file()]
    if runs:
        newest = max(runs, key=lambda entry: (entry / "config.yaml").stat().st_mtime)
        raise ConfigError(f"--model: {folder} holds runs; fix: --model {newest}, the newest of {len(runs)}")


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "model" / "config.json").is_file()


def _fix(checkpoint: Path) -> str:
    """The model, and the run's settings that it was trained with."""
    config = checkpoint.absolute().parent.parent / "config.yaml"
    told = f"--model {checkpoint / 'model'}"
    return f"{told} --config {checkpoint.parent.parent / 'config.yaml'}" if config.is_file() else told


def data_of(texts: Sequence[str]) -> dict[str, str]:
    """Sources by the names of their benchmarks, from what `--data` was given.

    Raises:
        ConfigError: two have one name; only one of them would be asked.
    """
    data: dict[str, str] = {}
    for name, source in map(_named, texts):
        if name in data:
            raise ConfigError(
                f"--data: {data[name]} and {source} would both be called {name}; fix: --data NAME=SOURCE for each"
            )
        data[name] = source
    return data


def check_sources(data: Mapping[str, str]) -> None:
    """Refuse benchmarks without a source: an environment would take problems of its own choice.

    Raises:
        ConfigError: a source is empty.
    """
    for name, source in data.items():
        if not source.strip():
            raise ConfigError(f"benchmarks.data: {name} has no source; fix: --data {name}=FILE")


def _named(text: str) -> tuple[str, str]:
    """`NAME=SOURCE`, or a source whose name is made of it."""
    name, equals, source = text.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", name):
        return name, source
    stem = Path(text).stem if Path(text).suffix else text.rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", stem.rpartition(":")[2]) or "data", text
