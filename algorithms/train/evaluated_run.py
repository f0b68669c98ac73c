"""The configuration of an evaluation: a run's own settings < files < flags < `section.key=value`.

A run's configuration comes with a model, perhaps somebody else's: what it may not decide is withheld. A file that
`--config` names is trusted like a script. One that only lies in the folder of `--model` is not: a setting that can
import, unpickle or run anything else than this library counts only if the user repeats it.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError, shown
from algorithms.config.files import Layer, file_layers
from algorithms.config.loading import as_override, load, parse_override
from algorithms.config.machine import WITHOUT_ADAPTER
from algorithms.config.rllib_names import our_name
from algorithms.config.schema import Affects, settings_that_affect
from algorithms.evaluation.benchmarks import check_sources, parse_data
from algorithms.evaluation.config import KNOWN_SECTIONS, BenchmarksConfig, move_gpu_to_engine, without_learners
from algorithms.evaluation.problems import is_mixture
from algorithms.grpo.config import GRPOConfig
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.integrity import check_record
from algorithms.train.manifest import damage
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, step_of
from algorithms.utils.errors import CheckpointError
from algorithms.utils.files import user_path
from r3env.data.sources import evaluation_source
from r3env.printable import printable
from r3env.spelling import nearest

# Those with a module run its code, and some that come with r3env (GEM's, SkyRL's) run what a policy writes.
_OWN_ENVIRONMENTS = "r3env/"
# What names code that r3env's own environments run; a mixture hands its own on to its parts.
_FUNCTIONS = ("options.reward", "options.agent", "options.tools", "options.mcp_servers")
# An empty file: `load` without any reads the quickstart, whose problems and texts are not wanted here.
_NOTHING = os.devnull


class EvaluateConfig(BenchmarksConfig, GRPOConfig):
    """The configuration of `python -m algorithms.evaluate`."""


def resolve_config(arguments: argparse.Namespace) -> tuple[EvaluateConfig, int]:
    """Resolve the configuration: the run, where it may decide < files < flags < `section.key=value`.

    Returns:
        The configuration, checked field by field, and the seed of the sampling.

    Raises:
        ConfigError: the model, the data, a file or a setting is not valid; the line names it, and the fix.
    """
    if arguments.model == "":
        raise ConfigError("--model: is empty, as of a variable that is not set; fix: name a model, or leave it out")
    own_files = list(arguments.config or [])
    files, overrides = own_files, []
    for folder in (user_path(arguments.model or ""), *(user_path(file).parent for file in own_files)):
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
    # A checkpoint's model has the adapter merged, and a base is evaluated without one.
    overrides += [f"rl_module.{name}={value}" for name, value in WITHOUT_ADAPTER.items()]
    if arguments.model:  # which says what is loaded; a file of training may start from something else
        overrides += [f"rl_module.model={arguments.model}", "run.start_from=null", "run.start_with=[]"]
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
    if run.start_from is not None:
        raise ConfigError(
            "run.start_from: an evaluation does not load it; fix: --model with the run, or with a folder that has the "
            "adapter merged (peft's merge_and_unload); or run.start_from=null, to evaluate rl_module.model as it is"
        )
    move_gpu_to_engine(config)
    if of_run is not None:
        check_environments(of_run, config, own_files, arguments.overrides)
        for note in withheld_notes(of_run, config):
            print(printable(note), file=sys.stderr)
    data = parse_data(arguments.data or ()) or config.benchmarks_settings.data
    if not is_mixture(config.environment_settings.id):
        held_out = config.evaluation_settings.data
        if isinstance(held_out, dict):  # of the parts of the mixture that the run trained on
            config.apply({"evaluation": {"data": None}})
        elif held_out and not data:
            data = {"heldout": held_out}
    check_sources(data)
    data = {name: evaluation_source(source) for name, source in data.items()}  # names the split in evaluation.yaml
    hard_for = config.benchmarks_settings.hard_for
    # Compared with folders later on, perhaps from another one.
    absolute = None if hard_for is None else str(user_path(hard_for).resolve())
    return config.apply({"benchmarks": {"data": data, "hard_for": absolute}}), run.seed


def _newest_checkpoint(run_folder: Path) -> Path | None:
    try:
        return Checkpoints(run_folder / "checkpoints").newest(("model/", "state.json"))
    except CheckpointError as error:
        what = str(error).partition("; fix:")[0]
        raise ConfigError(
            f"--model: {what}; fix: name the folder `model` of an earlier checkpoint, with --config "
            f"{run_folder / 'config.yaml'}"
        ) from error


def run_file(model: str | None) -> Path | None:
    """Return the configuration file of a training run; None where `--model` names something else."""
    file = user_path(model or "") / "config.yaml"
    return file if model and file.is_file() else None


def check_model(model: str | None) -> None:
    """Refuse folders that are easily mistaken for a model.

    Raises:
        ConfigError: a checkpoint, a folder of checkpoints or of runs, or a mistyped run; the line names the fix.
    """
    folder = user_path(model or "")
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
    if (folder / "adapter_config.json").is_file():
        fix = "merge it into its base (peft's merge_and_unload, then save_pretrained)"
        if _is_checkpoint(folder.parent):
            fix = _model_arguments(folder.parent)
        raise ConfigError(f"--model: {folder} is an adapter without its base; fix: {fix}")
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


def withhold_options(files: Sequence[str]) -> list[str]:
    """Return overrides that set the withheld settings to the values of the user's own files, or to the default."""
    return [as_override(name, value) for name, value in {**_withheld(), **_stated(files)}.items()]


def withheld_notes(run_file: Path, config: EvaluateConfig) -> list[str]:
    """Return a line for each setting that the run's file has and `config` has not."""
    defaults, lines = _withheld(), []
    for name, value in _stated([str(run_file)]).items():
        section, _, key = name.partition(".")
        if value not in (None, defaults[name]) and value != config.to_sections()[section][key]:
            lines.append(
                f"note: {run_file}: {name} is not taken from a run folder, as it may run code that comes with it; "
                f"if you trust it, repeat {shlex.quote(as_override(name, value))}"
            )
    return lines


def check_environments(run_file: Path, config: EvaluateConfig, files: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse a run's environments that are not r3env's own, and functions that they call; imports nothing.

    Args:
        run_file: the run's.
        config: all that was read.
        files: the user's own.
        overrides: the user's own.

    Raises:
        ConfigError: one line that names the setting, and the override that allows it.
    """
    described = config.environment_settings.model_dump()
    said = [one for section in _sections_of_the_user(files, overrides) for one in _environments("environment", section)]
    repeated = {key: [values.get(key) for _, values in said] for key in ("id", *_FUNCTIONS)}
    for place, values in _environments("environment", described):
        name = values.get("id")
        own = isinstance(name, str) and name.startswith(_OWN_ENVIRONMENTS) and ":" not in name
        if name is not None and not own and name not in repeated["id"]:
            raise ConfigError(
                f"{run_file}: {place}.id: {shown(name)} is not one of {_OWN_ENVIRONMENTS}…, and may run code of its "
                f"own; {_repeat(f'{place}.id', name)}"
            )
        for key in _FUNCTIONS if own else ():
            function = values.get(key)
            if function is not None and function not in repeated[key]:
                where = f"{place}.{key}"
                fix = _repeat(where, function)
                raise ConfigError(f"{run_file}: {where}: {shown(function)} names code to run; {fix}")


def _repeat(name: str, value: Any) -> str:
    override = f"{name}={value}" if isinstance(value, str) else as_override(name, value)
    return f"fix: if you trust it, repeat {shlex.quote(override)} on the command line"


def _layers(files: Sequence[str]) -> list[Layer]:
    return file_layers(*map(user_path, files))


def _withheld() -> dict[str, Any]:
    """Return the defaults of the settings that a run folder may not decide."""
    return settings_that_affect(KNOWN_SECTIONS, Affects.CODE)


def _stated(files: Sequence[str]) -> dict[str, Any]:
    """Return the withheld settings that files hold."""
    pairs = [name.split(".") for name in _withheld()]
    return {
        f"{section}.{key}": values[key]
        for layer in _layers(files)
        for section, key in pairs
        if isinstance(values := layer.sections.get(section), Mapping) and key in values
    }


def _sections_of_the_user(files: Sequence[str], overrides: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what the user's files and overrides say of the environment, each by itself."""
    for layer in _layers(files):
        section = layer.sections.get("environment")
        if isinstance(section, Mapping):
            yield {our_name("environment", str(key)): value for key, value in section.items()}
    for text in overrides:
        override = parse_override(text, KNOWN_SECTIONS)
        value = override.value
        for name in reversed(override.entry):
            value = {name: value}
        if override.section == "environment":
            yield {override.key: value}


def _environments(place: str, described: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the id and the functions of an environment and those of a mixture's parts, with its dotted name."""
    if not isinstance(described, Mapping):
        return
    options = described.get("options")
    options = options if isinstance(options, Mapping) else {}
    yield place, {"id": described.get("id"), **{key: options.get(key.partition(".")[2]) for key in _FUNCTIONS}}
    parts = options.get("environments")
    for part, value in parts.items() if isinstance(parts, Mapping) else ():
        yield from _environments(f"{place}.options.environments.{part}", value)
