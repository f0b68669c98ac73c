"""What an evaluation is asked for: a run's own settings, then files, then the command line."""

import argparse
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.files import load, to_yaml
from algorithms.evaluate.checks import WITHOUT_LEARNERS, gpu_for_the_engine
from algorithms.evaluate.config import EvaluateConfig
from algorithms.evaluate.naming import check_model, check_sources, data_of, run_file
from algorithms.evaluate.problems import is_mixture
from algorithms.evaluate.trust import check_environments, notes, withheld
from algorithms.script.checkpoint_errors import CheckpointError
from algorithms.script.checkpoints import Checkpoints

# An empty file: `load` without any reads the quickstart, whose problems and texts are not wanted here.
_NOTHING = os.devnull


def config_of(arguments: argparse.Namespace) -> tuple[EvaluateConfig, int]:
    """What a run was trained with, as far as it may decide, then files, then the flags, then `section.key=value`.

    Returns:
        The configuration, checked field by field, and the seed of the sampling.

    Raises:
        ConfigError: the model, the data, a file or a setting cannot be; the line names it, and the fix.
    """
    own_files = list(arguments.config or [])
    files, overrides = own_files, []
    of_run = run_file(arguments.model)
    if of_run is None:
        check_model(arguments.model)
    else:
        files = [str(of_run), *own_files]
        overrides += withheld(own_files)
        run_folder = of_run.parent
        checkpoint = _newest(run_folder)
        if checkpoint is None:
            raise ConfigError(
                f"--model: {run_folder} has no checkpoint yet; fix: wait for one, see run.checkpoint_every"
            )
        arguments.model = str(checkpoint / "model")
        overrides += ["rl_module.lora_rank=0"]  # the folder holds the merged model
    if arguments.model:
        overrides.append(f"rl_module.model={arguments.model}")
    if arguments.samples:
        overrides.append(f"evaluation.samples={arguments.samples}")
    if arguments.k or arguments.samples:
        ks = arguments.k or sorted({1, arguments.samples})
        overrides.append(f"evaluation.k=[{','.join(map(str, ks))}]")
    if arguments.engine:
        overrides.append(f"env_runners.engine={arguments.engine}")
    if arguments.reflection:
        overrides.append("evaluation.reflection=true")
    config, run = load(files or [_NOTHING], [*WITHOUT_LEARNERS, *overrides, *arguments.overrides], EvaluateConfig)
    gpu_for_the_engine(config)
    if of_run is not None:
        check_environments(of_run, config, own_files, arguments.overrides)
        for note in notes(of_run, config):
            print(note, file=sys.stderr)
    data = data_of(arguments.data or ()) or config.benchmarks_settings.data
    if not data and config.evaluation_settings.data and not is_mixture(config.environment_settings.id):
        data = {"heldout": config.evaluation_settings.data}
    check_sources(data)
    hard_for = config.benchmarks_settings.hard_for
    # Compared with folders later on, perhaps from another one.
    absolute = None if hard_for is None else str(Path(hard_for).expanduser().resolve())
    return config.apply({"benchmarks": {"data": data, "hard_for": absolute}}), run.seed


def _newest(run_folder: Path) -> Path | None:
    try:
        return Checkpoints(run_folder / "checkpoints").newest()
    except CheckpointError as error:
        what = str(error).partition("; fix:")[0]
        raise ConfigError(
            f"--model: {what}; fix: name the folder `model` of an earlier checkpoint, with --config "
            f"{run_folder / 'config.yaml'}"
        ) from error


def folder_of(arguments: argparse.Namespace, config: EvaluateConfig, benchmarks: Iterable[str]) -> Path:
    """Where results go."""
    model = re.sub(r"[^\w.-]+", "-", config.rl_module_settings.model).strip("-")[-80:]
    return Path(arguments.out or Path("evaluations") / f"{model}-{'-'.join(benchmarks)}"[:200])


def settings_of(config: EvaluateConfig, seed: int) -> str:
    """Everything that was set, as a file that can be read back."""
    _, run = load([_NOTHING], [f"run.seed={seed}", "run.name=evaluation"], EvaluateConfig)
    return to_yaml(config, run, algorithm="evaluate")
