"""The command line of every algorithm: `python -m algorithms.r3_grpo --config FILE section.key=value …`.

Exit codes: 0 done, 2 wrong input (the last line names it), 1 anything else, 130 interrupted.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from algorithms.config.errors import ConfigError
from algorithms.config.files import file_layers
from algorithms.config.plain_yaml import load_yaml
from algorithms.preflight.gpus import add_card_argument, count_for_card
from algorithms.train.exit_codes import (
    DONE,
    WRONG_INPUT,
    end_with_supervisor,
    in_one_line,
    is_supervised,
)
from algorithms.train.restarts import supervise
from algorithms.train.run_directory import RunDirectory, next_folder, run_of
from algorithms.train.stopping import call_and_leave
from algorithms.utils.errors import InputError
from algorithms.utils.files import user_path
from algorithms.utils.process import prepare
from r3env.printable import printable

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig

prepare()  # before anything imports Ray, transformers or vLLM

_SECTION = "run"
_PREFIX = f"{_SECTION}."


def wanted_restarts(files: Sequence[str], overrides: Sequence[str], resumed: str | None) -> int:
    """Return `run.restarts` as the training command will read it; 0 where it will refuse its input.

    Args:
        files: what `--config` names.
        overrides: `section.key=value`.
        resumed: what `--resume` names.
    """
    try:
        sources = [run_of(Path(resumed)) / "config.yaml"] if resumed else files
        value = _run_section(sources, overrides).get("restarts")
        value = load_yaml(value) if isinstance(value, str) else value
    except ValueError:
        return 0
    return value if isinstance(value, int) and value > 0 else 0


def begun_run(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """Return the run directory that `run.dir` and `run.name` name, if a run was begun there, or fetch its copy.

    Raises:
        ConfigError: a file cannot be read, or no name is set: without one each start is a run of its own; or
            `run.copy_to` cannot be used.
    """
    section = _run_section(files, overrides)
    name = section.get("name")
    if not name or not isinstance(name, str):
        raise ConfigError("run.name: --continue finds the run by it; fix: set run.name, and run.dir if it is not runs")
    parent = user_path(str(section.get("dir") or "runs"))
    with contextlib.suppress(ValueError):
        return RunDirectory.open(parent / name).path
    copy_to = section.get("copy_to")
    if isinstance(copy_to, str) and "://" in copy_to and not (parent / name).exists():
        from algorithms.train.remote_copy import Place, fetch

        place = Place(copy_to, name)
        return fetch(place.uri, parent) if place.standing() else None
    return None


def _run_section(files: Sequence[str | Path], overrides: Sequence[str]) -> dict[str, Any]:
    """Section `run` as files and overrides have it, values of overrides as text; nothing is checked."""
    values: dict[str, Any] = {}
    for layer in file_layers(*map(user_path, files)):
        section = layer.sections.get(_SECTION)
        values |= section if isinstance(section, dict) else {}
    given = (text.removeprefix(_PREFIX).partition("=") for text in overrides if text.startswith(_PREFIX))
    return values | {key: value for key, _, value in given}


def main(algorithm: str, argv: Sequence[str] | None = None) -> int:
    """Run the training command.

    Args:
        algorithm: `grpo` or `r3_grpo`.
        argv: command-line arguments; None takes the process's own.

    Returns:
        The exit code.
    """
    arguments = _parser(algorithm).parse_intermixed_args(argv)
    if arguments.help:
        return in_one_line(lambda: _help(algorithm, arguments), retry="ask for --help again")
    return in_one_line(lambda: _run(algorithm, arguments), retry="resume with --resume")


def _run(algorithm: str, arguments: argparse.Namespace) -> int:
    from algorithms.config.loading import load

    count_for_card(arguments.card, checks=arguments.check)
    _choose_begun(arguments)
    if arguments.continue_run and arguments.resume is not None:
        begun = arguments.resume
        print(
            printable(
                f"--continue: resuming {begun} with its own settings; to change one: --resume {begun} section.key=value"
            )
        )
    with contextlib.ExitStack() as held:
        stored = None
        if arguments.resume is not None:  # "" as of a variable that is not set
            from algorithms.train.stored_run import StoredRun, check_kept_settings

            found = StoredRun.open(Path(arguments.resume), algorithm, to_train=not arguments.check)
            stored = held.enter_context(found)
        if stored and arguments.config:
            raise ConfigError("--config: a resumed run keeps its own configuration; fix: override single settings")
        file = stored.directory.config_file if stored else arguments.config
        config, run = load(file, arguments.overrides, _config_class(algorithm))
        # Behind what is most often refused: they take seconds to import.
        from algorithms.preflight.check import check, validate_start
        from algorithms.train.loop import resume, train
        from algorithms.train.remote_copy import Place
        from algorithms.train.run_location import check_place
        from algorithms.train.start_from import find_start, find_start_again
        from algorithms.train.stop_conditions.base import build_conditions, check_best_metric
        from algorithms.train.trackers.registry import check_trackers

        if stored:
            check_kept_settings(stored.directory.config_file, config)
            run = find_start_again(stored, run, config)
        build_conditions(run.stop, config)  # a condition that nothing measures is refused
        check_best_metric(run, config)
        check_trackers(run.trackers)
        if not stored:
            run = find_start(run, config)
            check_place(run.dir, run.name or algorithm)
            if run.copy_to is not None:
                folder = next_folder(run.dir, run.name or algorithm)
                Place(run.copy_to, folder.name).check(folder)  # another run's copy is refused
        if arguments.check:
            report = check(config, run)
            print("\n".join(report.lines))
            return DONE if report.enough else WRONG_INPUT
        validate_start(config)
        if stored:
            resume(stored, config, run, name=algorithm)
        else:
            train(config, run, name=algorithm, numbered=not arguments.continue_run)
    return DONE


def _choose_begun(arguments: argparse.Namespace) -> None:
    """Have `--resume` name a folder: of a URI the run fetched, of `--continue` the run that was begun, if any was.

    Its own configuration holds, as given then.
    """
    if not arguments.continue_run:
        if arguments.resume and "://" in arguments.resume:
            from algorithms.train.remote_copy import fetch

            parent = _run_section((), arguments.overrides).get("dir") or "runs"
            arguments.resume = str(fetch(arguments.resume, user_path(parent)))
        return
    if arguments.resume is not None:
        raise ConfigError("--continue: finds the run to resume by run.name; fix: leave out --resume")
    if begun := begun_run(arguments.config or (), arguments.overrides):
        arguments.resume, arguments.config, arguments.overrides = str(begun), None, []


def _help(algorithm: str, arguments: argparse.Namespace) -> int:
    """Print the command line and the common settings; with `all` every one, those of the methods named included."""
    from algorithms.config.loading import known_sections, load
    from algorithms.config.schema import describe, describe_default
    from algorithms.config.sections import COMMON

    overrides = arguments.overrides + [arguments.help] * (arguments.help not in ("all", "common"))
    config, _ = load(arguments.config, overrides, _config_class(algorithm))
    sections, lines = known_sections(config), [_parser(algorithm).format_help()]
    everything = {name: list(model.model_fields) for name, model in sections.items()}
    chosen = everything if arguments.help == "all" else COMMON
    for section, keys in chosen.items():
        model = sections[section]
        lines.append(f"{section}: {next(iter((model.__doc__ or '').splitlines()), '')}")
        for key in keys:
            field = model.model_fields[key]
            lines.append(f"  {section}.{key}  {describe(field)}; default {describe_default(field)}")
            lines.append(f"      {field.description}")
    print("\n".join(lines))
    return DONE


def run_and_leave(algorithm: str, argv: Sequence[str]) -> NoReturn:
    """Run the training command, or its supervisor, then end the process however that went."""
    call_and_leave(lambda: _run_or_supervise(algorithm, argv))


def _run_or_supervise(algorithm: str, argv: Sequence[str]) -> int:
    restarts = _restarts(algorithm, argv)
    command = [sys.executable, "-m", "algorithms.train", algorithm]
    return supervise(command, argv, restarts) if restarts else main(algorithm, argv)


def _restarts(algorithm: str, argv: Sequence[str]) -> int:
    """Return how often this process has to start the run again, as its supervisor; 0 where it is the run itself."""
    if is_supervised():
        end_with_supervisor()
        return 0
    arguments = _parser(algorithm).parse_intermixed_args(argv)
    if arguments.help or arguments.check:
        return 0
    with contextlib.suppress(InputError, OSError):  # the run itself refuses it
        _choose_begun(arguments)
    return wanted_restarts(arguments.config or (), arguments.overrides, arguments.resume)


def _config_class(algorithm: str) -> "type[GRPOConfig]":
    if algorithm == "grpo":
        from algorithms.grpo.config import GRPOConfig

        return GRPOConfig
    from algorithms.r3_grpo.config import R3GRPOConfig

    return R3GRPOConfig


def _parser(algorithm: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m algorithms.{algorithm}",
        add_help=False,
        description="Train a language model with verifiable rewards. Without arguments: run the quickstart.",
        epilog="Any setting can be given as section.key=value; docs/reference/settings.md lists them.",
    )
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        const="common",
        metavar="all",
        help="show this help and the settings that people set most, with all every setting, and exit",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="override a setting of the files")
    parser.add_argument(
        "--config",
        metavar="FILE",
        action="append",
        help="YAML file of settings; may be repeated, later files win; default: quickstart.yaml, or none for your own "
        "model",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="resume the run in this directory from its last checkpoint; of a URI in run.copy_to: fetch it to run.dir "
        "first",
    )
    parser.add_argument(
        "--continue",
        dest="continue_run",
        action="store_true",
        help="resume the run that run.dir and run.name name if it exists, else start it: for jobs that a cluster "
        "restarts",
    )
    parser.add_argument(
        "--check", action="store_true", help="print what would run where and how much memory it needs, and exit"
    )
    add_card_argument(parser)
    return parser
