"""`python -m algorithms.sft`: resolve the configuration, read the solutions, start or resume a run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithms.config.errors import ConfigError
from algorithms.config.files import algorithm_of, to_yaml
from algorithms.config.loading import load
from algorithms.config.sections import RunSettings
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.check import validate_start
from algorithms.sft.check import check
from algorithms.sft.config import SFTConfig, check_installed, check_layers, without_learners
from algorithms.sft.rows import Rows, make_environment, read_rows
from algorithms.train.exit_codes import DONE, WRONG_INPUT
from algorithms.train.places import check_place
from algorithms.train.record import check_record
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.registry import check_trackers

NAME = "sft"  # of the algorithm, in config.yaml
SUFFIX = "-sft"  # of the run's name: a training that the same file configures has another folder


def run(argv: Sequence[str] | None) -> int:
    """Run the command line; return the exit code."""
    arguments = parser().parse_intermixed_args(argv)
    check_installed()
    if arguments.resume:
        return _resume(arguments)
    config, run = load(arguments.config, arguments.overrides, SFTConfig)
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
    print(f"run directory: {directory.path}{taken}", file=sys.stderr)
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
        print(f"{directory.path} is finished: {directory.path / 'model'}")
        return DONE
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
    from algorithms.sft.session import Session  # TRL takes seconds to import, and wrong input is told at once

    with directory.locked():
        Session(config, run, directory, rows).run_all()
    return DONE


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    commands = argparse.ArgumentParser(
        prog="python -m algorithms.sft",
        description="A supervised start: train a model on its training data's worked solutions, before reinforcement "
        "learning.",
        epilog="Any setting can be given as section.key=value; docs/guides/supervised-start.md has examples.",
    )
    commands.add_argument("overrides", nargs="*", metavar="section.key=value", help="override a setting of the files")
    commands.add_argument(
        "--config", action="append", metavar="FILE", help="YAML file of settings, the training's; may be repeated"
    )
    commands.add_argument("--resume", metavar="RUN", help="resume the run in this directory from its last checkpoint")
    commands.add_argument(
        "--check", action="store_true", help="print what would be trained and how much memory it needs, and exit"
    )
    return commands
