"""Check a supervised start's configuration, read its solutions, and begin or resume the run."""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from algorithms.config.errors import ConfigError
from algorithms.config.files import algorithm_of, to_yaml
from algorithms.config.loading import load
from algorithms.config.sections import RunSettings
from algorithms.finetuning.config import SFTConfig, check_installed, check_layers, without_learners
from algorithms.finetuning.rows import Row, Rows, make_environment, read_rows
from algorithms.models.names import ModelFacts, context_length, resolve_model, validate_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.activations import full_loss_bytes
from algorithms.preflight.chat_template import text_lines
from algorithms.preflight.check import validate_sequences, validate_start
from algorithms.preflight.description import (
    NOT_CACHED,
    NOT_ENOUGH,
    CheckResult,
    Line,
    bytes_text,
    evaluation_text,
    sum_text,
    to_result,
)
from algorithms.preflight.environments import validate_environment
from algorithms.preflight.gpus import count_for_card, found_gpus, other_card
from algorithms.preflight.memory import CUDA_BYTES, LIBRARIES_BYTES, learner_bytes
from algorithms.train.exit_codes import DONE, WRONG_INPUT
from algorithms.train.integrity import check_record
from algorithms.train.ray_watch import RayWatch
from algorithms.train.run_directory import RunDirectory
from algorithms.train.run_location import check_place, check_writable
from algorithms.train.stored_run import check_files
from algorithms.train.trackers.registry import check_trackers
from algorithms.utils.machine import memory_bytes
from r3env.printable import printable

NAME = "sft"  # of the algorithm, in config.yaml
SUFFIX = "-sft"  # of the run's name: a training that the same file configures has another folder
# Settings of section `run`, with the value that asks for nothing.
_WITHOUT_EFFECT = {
    "stop": "{}",
    "max_generated_tokens": "0",
    "start_from": "null",
    "start_with": "[]",
    "copy_to": "null",
    "restarts": "0",
}


def run(arguments: argparse.Namespace) -> int:
    """Check, begin or resume a run, as the command line says; return the exit code."""
    check_installed()
    count_for_card(arguments.card, checks=arguments.check)
    if arguments.resume is not None:  # "" as of a variable that is not set
        return _resume(arguments)
    config, run = load(arguments.config, arguments.overrides, SFTConfig)
    for key, none in _WITHOUT_EFFECT.items():
        if getattr(run, key):
            raise ConfigError(f"run.{key}: has no effect on a supervised start; fix: run.{key}={none}")
    if not str(run.name).endswith(SUFFIX):
        run = run.changed("run", {"name": f"{run.name}{SUFFIX}"})
    check_place(run.dir, str(run.name))
    if arguments.check:
        return _check(config, run)
    return _start(config, run)


def _check(config: SFTConfig, run: RunSettings) -> int:
    check_trackers(run.trackers)
    report = check(without_learners(config), run)
    print("\n".join(report.lines))
    return DONE if report.enough else WRONG_INPUT


def _start(config: SFTConfig, run: RunSettings) -> int:
    config, rows = _checked(config, run)
    directory = RunDirectory.create(run.dir, str(run.name), to_yaml(config, run, algorithm=NAME), run.mode)
    taken = f" ({run.name} is taken)" if directory.name != run.name else ""
    print(printable(f"run directory: {directory.path}{taken}"), file=sys.stderr)
    return _run_in(directory, config, run, rows)


def _resume(arguments: argparse.Namespace) -> int:
    if arguments.config or arguments.overrides:
        raise ConfigError("--resume: a resumed run keeps its own configuration; fix: leave out --config and settings")
    try:
        directory = RunDirectory.open(Path(arguments.resume))
    except ValueError as error:
        raise ConfigError(f"--resume: {error}") from error
    check_record(directory, unlisted="pass")
    if (trained_by := algorithm_of(directory.config_file)) != NAME:
        fix = f"python -m algorithms.{trained_by} --resume {directory.path}"
        raise ConfigError(f"--resume: {directory.path} is a run of {trained_by}; fix: {fix}")
    check_record(directory, unlisted="refuse")
    config, run = load(directory.config_file, [], SFTConfig)
    if arguments.check:
        return _check(config, run)
    if directory.summary_file.exists():
        print(printable(f"{directory.path} is finished: {directory.path / 'model'}"))
        return DONE
    check_writable(directory.written_paths())
    check_files(directory)
    config, rows = _checked(config, run)
    return _run_in(directory, config, run, rows)


def _checked(config: SFTConfig, run: RunSettings) -> tuple[SFTConfig, Rows]:
    """Check all that a run needs, and read its rows."""
    config = without_learners(config)
    check_trackers(run.trackers)
    environment = make_environment(config)
    validate_start(config)
    check_layers(config)
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    rows = read_rows(config, environment, tokenizer, context_length(module))
    print(rows.described(), file=sys.stderr)
    return config, rows


def _run_in(directory: RunDirectory, config: SFTConfig, run: RunSettings, rows: Rows) -> int:
    from algorithms.finetuning.session import Session  # TRL takes seconds to import, and wrong input is told at once

    with directory.locked(), RayWatch(f"--resume {directory.path}") as watch:
        Session(config, run, directory, rows, watch.start_ray).run_all()
    return DONE


# What training's learners may hold, and the trainer does not.
_NOT_HELD = ("reference", "teacher")


def check(config: SFTConfig, run: RunSettings) -> CheckResult:
    """Describe what a run would train, and whether this machine's memory suffices; the solutions are read.

    A model on the Hub that cannot be reached is no error.

    Raises:
        ConfigError: wrong input; one line.
    """
    config.check_settings()
    environment = make_environment(config)
    model = validate_model(config, unreachable_ok=True)
    facts = validate_environment(config, fetch=False, trial=True)
    lines: list[Line | tuple[str, str]] = [("algorithm", "SFT")]
    if model is None:
        lines.append(("model", f"{config.rl_module_settings.model}: {NOT_CACHED}"))
        return to_result([*lines, ("evaluation", evaluation_text(config, facts.held_out, "before and after"))])
    validate_sequences(config, model, facts)
    check_layers(config)
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    rows = read_rows(config, environment, tokenizer, context_length(module))
    lines += [("run", _run(config, run, rows)), ("model", _model(config, model))]
    lines += [("environment", _data(config)), ("solutions", rows.described().partition(": ")[2])]
    lines += [_memory(config, model, rows), ("evaluation", evaluation_text(config, facts.held_out, "before and after"))]
    lines += _example(rows.train[0], tokenizer)
    return to_result(lines)


def _run(config: SFTConfig, run: RunSettings, rows: Rows) -> str:
    settings = config.sft_settings
    micro = min(settings.micro_batch_size, settings.batch_size)
    # As transformers' Trainer counts: a pass ends in a smaller batch.
    each = math.ceil(math.ceil(len(rows.train) / micro) / (settings.batch_size // micro))
    steps = settings.steps or math.ceil(settings.epochs * each)
    every = f"every {run.checkpoint_every} steps and at the end" if run.checkpoint_every else "at the end"
    step = f"{steps} steps of {settings.batch_size} rows, an epoch is {each}"
    return f"{run.dir}/{run.name}: {step}; lr {settings.lr:g}, seed {run.seed}, checkpoint {every}"


def _model(config: SFTConfig, model: ModelFacts) -> str:
    module = config.rl_module_settings
    what = f"an adapter of rank {module.lora_rank}" if module.lora_rank else "all weights"
    return f"{model.name}: {model.architecture}, {model.parameters:,} parameters; {what} trained, in {module.dtype}"


def _data(config: SFTConfig) -> str:
    settings = config.environment_settings
    return f"{settings.id}, {settings.data}" if settings.data else settings.id


def _memory(config: SFTConfig, model: ModelFacts, rows: Rows) -> Line:
    parts = {name: size for name, size in learner_bytes(config, model).items() if name not in _NOT_HELD}
    micro = min(config.sft_settings.micro_batch_size, config.sft_settings.batch_size)
    length = max(len(row.prompt) + len(row.response) for row in rows.train)
    activations = full_loss_bytes(config.rl_module_settings, micro, length)
    if activations is None:
        return Line("memory", f"{sum_text(parts)}, without activations", True)
    gpus = found_gpus()
    libraries = CUDA_BYTES if gpus else LIBRARIES_BYTES
    needed = sum(parts.values()) + activations + libraries
    there = gpus.least_bytes if gpus else memory_bytes()
    owner = "the card" if other_card() else "this machine"
    text = (
        f"{sum_text(parts)}; with activations of {micro} × {length} tokens, {bytes_text(activations)}, up to "
        f"{bytes_text(needed)}, libraries included; {owner} has {bytes_text(there)}"
    )
    enough = needed <= there
    fix = "fix: a smaller sft.micro_batch_size or sft.max_tokens, rl_module.gradient_checkpointing=true, or an adapter"
    return Line("memory", text if enough else f"{text}{NOT_ENOUGH}; {fix}", enough)


def _example(row: Row, tokenizer: object) -> Iterator[tuple[str, str]]:
    """Yield the first row as it is trained on: its tokens, decoded."""
    for name, tokens, loss in (("prompt", row.prompt, "no loss"), ("solution", row.response, "the loss is here")):
        yield f"first {name}", f"{row.uid}, {len(tokens)} tokens, {loss}:"
        yield from text_lines("", str(tokenizer.decode(tokens)))  # type: ignore[attr-defined]
