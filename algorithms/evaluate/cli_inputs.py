"""Resolve the command line: a run's own settings < files < flags < `section.key=value`."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from algorithms.config.errors import ConfigError
from algorithms.config.files import to_yaml
from algorithms.config.loading import load
from algorithms.evaluate.config import EvaluateConfig, move_gpu_to_engine, without_learners
from algorithms.evaluate.problems import is_mixture
from algorithms.evaluate.untrusted_config import check_environments, withheld_notes, withhold_options
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.manifest import damage
from algorithms.train.record import check_record
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, step_of
from algorithms.utils.errors import CheckpointError
from r3env.data.sources import evaluation_source
from r3env.spelling import nearest

# An empty file: `load` without any reads the quickstart, whose problems and texts are not wanted here.
_NOTHING = os.devnull


def resolve_config(arguments: argparse.Namespace) -> tuple[EvaluateConfig, int]:
    """Resolve the configuration: the run, where it may decide < files < flags < `section.key=value`.

    Returns:
        The configuration, checked field by field, and the seed of the sampling.

    Raises:
        ConfigError: the model, the data, a file or a setting is not valid; the line names it, and the fix.
    """
    own_files = list(arguments.config or [])
    files, overrides = own_files, []
    for folder in (Path(arguments.model or "").expanduser(), *(Path(file).expanduser().parent for file in own_files)):
        if (folder / CHECKPOINTS).is_dir():
            check_record(RunDirectory(folder))
    of_run = run_file(arguments.model)
    if of_run is None:
        check_model(arguments.model)
    else:
        files = [str(of_run), *own_files]
        overrides += withhold_options(own_files)
        run_folder = of_run.parent
        checkpoint = _newest_checkpoint(run_folder)
        if checkpoint is None:
            raise ConfigError(
                f"--model: {run_folder} has no checkpoint yet; fix: wait for one, see run.checkpoint_every"
            )
        arguments.model = str(checkpoint / "model")
        overrides += ["rl_module.lora_rank=0"]  # the folder holds the merged model
    if arguments.model:
        overrides.append(f"rl_module.model={arguments.model}")
    if arguments.greedy:
        overrides.append("evaluation.temperature=0")
        arguments.samples = arguments.samples or 1
    if arguments.samples:
        overrides.append(f"evaluation.samples={arguments.samples}")
    if arguments.k or arguments.samples:
        ks = arguments.k or sorted({1, arguments.samples})
        overrides.append(f"evaluation.k=[{','.join(map(str, ks))}]")
    if arguments.engine:
        overrides.append(f"env_runners.engine={arguments.engine}")
    if arguments.reflection:
        overrides.append("evaluation.reflection=true")
    config, run = load(files or [_NOTHING], [*without_learners(), *overrides, *arguments.overrides], EvaluateConfig)
    move_gpu_to_engine(config)
    if of_run is not None:
        check_environments(of_run, config, own_files, arguments.overrides)
        for note in withheld_notes(of_run, config):
            print(note, file=sys.stderr)
    data = parse_data(arguments.data or ()) or config.benchmarks_settings.data
    if not data and config.evaluation_settings.data and not is_mixture(config.environment_settings.id):
        data = {"heldout": config.evaluation_settings.data}
    check_sources(data)
    data = {name: evaluation_source(source) for name, source in data.items()}  # names the split in evaluation.yaml
    hard_for = config.benchmarks_settings.hard_for
    # Compared with folders later on, perhaps from another one.
    absolute = None if hard_for is None else str(Path(hard_for).expanduser().resolve())
    return config.apply({"benchmarks": {"data": data, "hard_for": absolute}}), run.seed


def _newest_checkpoint(run_folder: Path) -> Path | None:
    try:
        return Checkpoints(run_folder / "checkpoints").newest()
    except CheckpointError as error:
        what = str(error).partition("; fix:")[0]
        raise ConfigError(
            f"--model: {what}; fix: name the folder `model` of an earlier checkpoint, with --config "
            f"{run_folder / 'config.yaml'}"
        ) from error


def results_folder(arguments: argparse.Namespace, config: EvaluateConfig, benchmarks: Iterable[str]) -> Path:
    """Return the folder that results go into."""
    model = re.sub(r"[^\w.-]+", "-", config.rl_module_settings.model).strip("-")[-80:]
    return Path(arguments.out or Path("evaluations") / f"{model}-{'-'.join(benchmarks)}"[:200])


def settings_yaml(config: EvaluateConfig, seed: int) -> str:
    """Return the whole configuration as YAML that can be read back."""
    _, run = load([_NOTHING], [f"run.seed={seed}", "run.name=evaluation"], EvaluateConfig)
    return to_yaml(config, run, algorithm="evaluate")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    commands = argparse.ArgumentParser(
        prog="python -m algorithms.evaluate",
        description="Measure how well a model solves problems: pass@k, maj@k, lengths, with 95 % intervals.",
        epilog="Any setting can be given as section.key=value; docs/guides/evaluation.md has examples.",
    )
    commands.add_argument("overrides", nargs="*", metavar="section.key=value", help="override a setting of the files")
    commands.add_argument(
        "--model",
        help="a Hub id, a folder in Hugging Face's format, or a run directory (its newest checkpoint); default: "
        "embedded:tiny",
    )
    commands.add_argument(
        "--data",
        action="append",
        metavar="[NAME=]SOURCE",
        help="problems, written like evaluation.data; may be repeated; default: the run's held-out problems",
    )
    commands.add_argument("--samples", type=_positive, help="answers per problem")
    commands.add_argument(
        "--k", type=_numbers, metavar="1,16", help="the k of pass@k and maj@k; default: 1 and --samples"
    )
    commands.add_argument("--greedy", action="store_true", help="decode greedily, one answer per problem")
    commands.add_argument("--engine", choices=("transformers", "vllm"), help="inference engine")
    commands.add_argument(
        "--reflection", action="store_true", help="also measure pass@1 after a second attempt at incorrect answers"
    )
    commands.add_argument(
        "--config", action="append", metavar="FILE", help="YAML files, such as configs/eval_paper.yaml"
    )
    commands.add_argument("--out", metavar="FOLDER", help="folder for the results; the same folder again resumes")
    commands.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        type=Path,
        help="print the paired differences of two finished evaluations",
    )
    return commands


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(number) for number in text.split(",")]


def run_file(model: str | None) -> Path | None:
    """Return the configuration file of a training run; None where `--model` names something else."""
    file = Path(model or "").expanduser() / "config.yaml"
    return file if model and file.is_file() else None


def check_model(model: str | None) -> None:
    """Refuse folders that are easily mistaken for a model.

    Raises:
        ConfigError: a checkpoint, a folder of checkpoints or of runs, or a mistyped run; the line names the fix.
    """
    folder = Path(model or "").expanduser()
    beside = sorted(file.parent.name for file in folder.parent.glob("*/config.yaml")) if folder.parent.name else []
    if beside and not folder.exists():
        fix = f"a run of {folder.parent}, the nearest is {nearest(folder.name, beside)}"
        raise ConfigError(f"--model: there is no {folder}; fix: {fix}")
    if folder.name == "model" and step_of(folder.parent) is not None and (trouble := damage(folder.parent, "model/")):
        raise ConfigError(
            f"--model: {folder.parent}: the checkpoint is damaged, {trouble}; fix: the folder `model` of another "
            "checkpoint, or a whole copy of this one"
        )
    if not model or not folder.is_dir() or (folder / "config.json").is_file():
        return
    if _is_checkpoint(folder):
        raise ConfigError(
            f"--model: {folder} is a checkpoint, which holds more than the model; fix: {_model_arguments(folder)}"
        )
    checkpoints = sorted(entry for entry in folder.iterdir() if _is_checkpoint(entry))
    if checkpoints:
        raise ConfigError(f"--model: {folder} holds checkpoints; fix: {_model_arguments(checkpoints[-1])}")
    runs = [entry for entry in folder.iterdir() if (entry / "config.yaml").is_file()]
    if runs:
        newest = max(runs, key=lambda entry: (entry / "config.yaml").stat().st_mtime)
        raise ConfigError(f"--model: {folder} holds runs; fix: --model {newest}, the newest of {len(runs)}")


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "model" / "config.json").is_file()


def _model_arguments(checkpoint: Path) -> str:
    """Return the arguments for the model in a checkpoint, with its run's settings."""
    config = checkpoint.absolute().parent.parent / "config.yaml"
    arguments = f"--model {checkpoint / 'model'}"
    return f"{arguments} --config {checkpoint.parent.parent / 'config.yaml'}" if config.is_file() else arguments


def parse_data(texts: Sequence[str]) -> dict[str, str]:
    """Return sources by the names of their benchmarks, from the values of `--data`.

    Raises:
        ConfigError: two have one name; only one of them would be sampled.
    """
    data: dict[str, str] = {}
    for name, source in map(_parse_source, texts):
        if name in data:
            raise ConfigError(
                f"--data: {data[name]} and {source} would both have the name {name}; fix: --data NAME=SOURCE for each"
            )
        data[name] = source
    return data


def check_sources(data: Mapping[str, str]) -> None:
    """Refuse benchmarks without a source, where an environment would choose its own problems.

    Raises:
        ConfigError: a source is empty.
    """
    for name, source in data.items():
        if not source.strip():
            raise ConfigError(f"benchmarks.data: {name} has no source; fix: --data {name}=FILE")


def _parse_source(text: str) -> tuple[str, str]:
    """Split `NAME=SOURCE`; a source alone is named after itself."""
    name, equals, source = text.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", name):
        return name, source
    stem = Path(text).stem if Path(text).suffix else text.rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", stem.rpartition(":")[2]) or "data", text
