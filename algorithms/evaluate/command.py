"""`python -m algorithms.evaluate`: what is read, what is asked, what is written and what is printed."""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.files import load, to_yaml
from algorithms.evaluate.answering import answer_all, parts
from algorithms.evaluate.comparison import compare, left_out
from algorithms.evaluate.config import EvaluateConfig
from algorithms.evaluate.differences import differences
from algorithms.evaluate.evaluation import evaluation_sampling
from algorithms.evaluate.fingerprint import of_model, of_problems
from algorithms.evaluate.naming import check_model, check_sources, data_of, run_file
from algorithms.evaluate.players import players
from algorithms.evaluate.problems import chosen, environment_of
from algorithms.evaluate.responses import ResponseFolder
from algorithms.evaluate.results import RESPONSES, SCORES, open_results, read_settings
from algorithms.evaluate.scores import Score, benchmark_scores
from algorithms.evaluate.tables import comparison_tables, level_table, score_table
from algorithms.evaluate.trust import check_environments, notes, withheld
from algorithms.models.names import fetch_model, validate_model
from algorithms.rollout.types import Sampling
from algorithms.runs.counter import Counter
from algorithms.runs.json_files import write_json
from algorithms.script.checkpoints import Checkpoints


def evaluate(arguments: argparse.Namespace) -> Path:
    """Evaluate a model, go on with an evaluation that was interrupted, or tell again what a finished one found.

    Returns:
        The folder with `evaluation.yaml`, `responses/` and `scores.json`.

    Raises:
        ConfigError: what was asked for cannot be; the line names the argument or the setting, and the fix.
    """
    config, seed = _config(arguments)
    benchmarks = config.benchmarks_settings
    if not benchmarks.data:
        raise ConfigError("benchmarks.data: no problems are named; fix: --data FILE, or --data NAME=preset:NAME")
    environment = environment_of(config)
    uids = chosen(environment, config)
    path = _path(arguments, config)
    folder = ResponseFolder(path / RESPONSES)
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    cut = parts(uids, evaluation.samples, runners.max_num_seqs * max(1, runners.num_env_runners))
    training = Sampling(runners.temperature, runners.top_p, runners.max_response_tokens)
    complete = all(folder.has(number) for number in range(len(cut)))
    if not complete:
        validate_model(config)
        fetch_model(config.rl_module_settings)
    asked = {"benchmarks": of_problems(environment.queries, uids), "model": of_model(config.rl_module_settings)}
    open_results(path, _settings(config, seed), asked, complete=complete)
    if not complete:
        title = f"evaluating {config.rl_module_settings.model}: {len(uids)} problems × {evaluation.samples} answers"
        with players(config) as player, Counter(title) as counter:
            answer_all(
                player.play,
                environment,
                cut,
                folder,
                samples=evaluation.samples,
                sampling=evaluation_sampling(evaluation, training),
                reflection=evaluation.reflection,
                seed=seed,
                on_progress=counter.update,
            )
    try:
        responses = folder.read()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    scores = benchmark_scores(responses, evaluation.k, benchmarks.limits)
    write_json(path / SCORES, _plain(scores))
    show(scores, path)
    return path


def show(scores: Mapping[str, Any], folder: Path) -> None:
    """Print the tables, and where everything is."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    console.print(score_table(scores))
    for benchmark, one in scores.items():
        if len(one["levels"]) > 1:
            console.print(level_table(benchmark, one["levels"]))
        if one["ungraded"]:
            console.print(f"{benchmark}: {one['ungraded']} responses could not be graded and count as wrong")
    if any(score.low is not None for one in scores.values() for score in one["scores"].values()):
        console.print("In brackets: 95 % intervals, bootstrap over problems.", highlight=False)
    console.print(f"  responses {folder / RESPONSES}\n  scores    {folder / SCORES}", highlight=False, markup=False)


def show_comparison(first: Path, second: Path) -> None:
    """Print the paired differences of two finished evaluations.

    Raises:
        ConfigError: a folder holds no finished evaluation, or the two have too few problems in common.
    """
    from rich.console import Console

    scores = [_scores(folder) for folder in (first, second)]
    settings = differences(*(read_settings(folder) for folder in (first, second)))
    changes = compare(*scores)
    if not changes:
        raise ConfigError(f"--compare: {first} and {second} have no benchmark with ten problems in common")
    console = Console(soft_wrap=True)
    for table in comparison_tables(changes, first.name, second.name):
        console.print(table)
    if missing := left_out(*scores):
        console.print(f"not compared, as only one of them has it: {', '.join(missing)}", highlight=False, markup=False)
    others = [f"  {name} {values}" for name, values in settings.items() if name != "rl_module.model"]
    if others:
        console.print("\n".join(["settings that differ:", *others]), highlight=False, markup=False)


def _config(arguments: argparse.Namespace) -> tuple[EvaluateConfig, int]:
    """What a run was trained with, as far as it may decide, then files, then the flags, then `section.key=value`."""
    own_files = list(arguments.config or [])
    files, overrides = own_files, []
    of_run = run_file(arguments.model)
    if of_run is None:
        check_model(arguments.model)
    else:
        files = [str(of_run), *own_files]
        overrides += withheld(own_files)
        run_folder = of_run.parent
        checkpoint = Checkpoints(run_folder / "checkpoints").newest()
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
    config, run = load(files or [_NOTHING], [*overrides, *arguments.overrides], EvaluateConfig)
    if of_run is not None:
        check_environments(of_run, config, own_files, arguments.overrides)
        for note in notes(of_run, config):
            print(note, file=sys.stderr)
    data = data_of(arguments.data or ()) or config.benchmarks_settings.data
    if not data and config.evaluation_settings.data:
        data = {"heldout": config.evaluation_settings.data}
    check_sources(data)
    return config.apply({"benchmarks": {"data": data}}), run.seed


# An empty file: `load` without any reads the quickstart, whose problems and texts are not wanted here.
_NOTHING = os.devnull


def _path(arguments: argparse.Namespace, config: EvaluateConfig) -> Path:
    """Where results go."""
    model = re.sub(r"[^\w.-]+", "-", config.rl_module_settings.model).strip("-")[-80:]
    return Path(arguments.out or Path("evaluations") / f"{model}-{'-'.join(config.benchmarks_settings.data)}"[:200])


def _settings(config: EvaluateConfig, seed: int) -> str:
    """Everything that was set, as a file that can be read back."""
    _, run = load([_NOTHING], [f"run.seed={seed}", "run.name=evaluation"], EvaluateConfig)
    return to_yaml(config, run, algorithm="evaluate")


def _scores(folder: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare: {folder} holds no finished evaluation ({error})") from error
    return stored


def _plain(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def plain(values: Mapping[str, Score]) -> dict[str, Any]:
        return {name: asdict(score) for name, score in values.items()}

    return {
        name: {**one, "scores": plain(one["scores"]), "levels": plain(one["levels"])} for name, one in scores.items()
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m algorithms.evaluate",
        description="Measure how well a model solves problems: pass@k, maj@k, lengths, with 95 % intervals.",
        epilog="Any setting can be given as section.key=value; docs/evaluation.md has examples.",
    )
    made.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the files'")
    made.add_argument(
        "--model",
        help="a Hub id, a folder in Hugging Face's format, or a run (its newest checkpoint); default: embedded:tiny",
    )
    made.add_argument(
        "--data",
        action="append",
        metavar="[NAME=]SOURCE",
        help="problems, named like environment.data; may be given several times; default: a run's held-out problems",
    )
    made.add_argument("--samples", type=_positive, help="answers a problem")
    made.add_argument("--k", type=_numbers, metavar="1,16", help="the k of pass@k; default: 1 and --samples")
    made.add_argument("--engine", choices=("transformers", "vllm"), help="inference engine")
    made.add_argument("--reflection", action="store_true", help="give wrong answers a second try")
    made.add_argument("--config", action="append", metavar="FILE", help="YAML files, such as configs/eval_paper.yaml")
    made.add_argument("--out", metavar="FOLDER", help="where results go; the same folder again goes on")
    made.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), type=Path, help="paired differences of two finished evaluations"
    )
    return made


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(number) for number in text.split(",")]


def run(argv: Sequence[str] | None) -> None:
    """What the command line asks for."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.compare:
        show_comparison(*arguments.compare)
    else:
        evaluate(arguments)
