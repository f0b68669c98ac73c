"""`python -m algorithms.evaluate`: what is read, what is asked, what is written and what is printed."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError
from algorithms.evaluate.cli_inputs import folder_of, parser, resolve_config, settings_of
from algorithms.evaluate.config import EvaluateConfig, check_limits, check_reflection, validate_engine
from algorithms.evaluate.console import show, show_comparison
from algorithms.evaluate.problems import chosen, environment_of, seed_of
from algorithms.evaluate.results import PART, RESPONSES, SCORES, begun_part_size, open_results
from algorithms.evaluation.fingerprint import of_model, of_problems
from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.responses import ResponseFolder
from algorithms.evaluation.resumable import part_size, parts, sample_parts
from algorithms.evaluation.sampling import evaluation_sampling, make_truncator
from algorithms.models.names import context_length, fetch_model, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.ray_session import start_ray
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.types import Sampling
from algorithms.rollout.workers import inference_workers
from algorithms.train.exit_codes import DONE
from algorithms.utils.files import write_json
from algorithms.utils.progress import Counter
from algorithms.utils.statistics import Score


def run(argv: Sequence[str] | None) -> int:
    """What the command line asks for; returns the exit code."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.compare:
        show_comparison(*arguments.compare)
    else:
        evaluate(arguments)
    return DONE


def evaluate(arguments: argparse.Namespace) -> Path:
    """Evaluate a model, go on with an evaluation that was interrupted, or tell again what a finished one found.

    Returns:
        The folder with `evaluation.yaml`, `responses/` and `scores.json`.

    Raises:
        ConfigError: what was asked for cannot be; the line names the argument or the setting, and the fix.
    """
    config, seed = resolve_config(arguments)
    benchmarks = config.benchmarks_settings
    environment = environment_of(config)
    check_limits(config, environment)
    check_reflection(config, environment)
    uids = chosen(environment, config)
    path = folder_of(arguments, config, environment.parts)
    folder = ResponseFolder(path / RESPONSES)
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    size = begun_part_size(path) or part_size(evaluation.samples, runners.max_num_seqs, runners.num_env_runners)
    cut = parts(uids, size)
    training = Sampling(runners.temperature, runners.top_p, runners.max_response_tokens)
    complete = all(folder.has(number) for number in range(len(cut)))
    if not complete:
        validate_engine(config, environment, uids)
        fetch_model(config.rl_module_settings)
    digests = {"benchmarks": of_problems(environment.queries, uids), "model": of_model(config.rl_module_settings)}
    asked = {**digests, PART: size}
    open_results(path, settings_of(config, seed), asked, complete=complete)
    if not complete:
        title = f"evaluating {config.rl_module_settings.model}: {len(uids)} problems × {evaluation.samples} answers"
        with inference_workers(config, start_ray) as workers, Counter(title) as counter:
            sample_parts(
                workers.rollout,
                environment,
                cut,
                folder,
                samples=evaluation.samples,
                sampling=evaluation_sampling(evaluation, training),
                truncator=_quoter(config, environment),
                seed=seed_of(seed, benchmarks),
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


def _quoter(config: EvaluateConfig, environment: Any) -> AttemptTruncator | None:
    """For second tries; None, and no tokenizer is read, where there are none."""
    if not config.evaluation_settings.reflection:
        return None
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    return make_truncator(config, tokenizer, environment, context_length(module))


def _plain(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def plain(values: Mapping[str, Score]) -> dict[str, Any]:
        return {name: asdict(score) for name, score in values.items()}

    return {
        name: {**one, "scores": plain(one["scores"]), "levels": plain(one["levels"])} for name, one in scores.items()
    }
