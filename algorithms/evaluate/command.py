"""`python -m algorithms.evaluate`: resolve the configuration, sample what is missing, write and print scores."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError
from algorithms.evaluate.cli_inputs import parser, resolve_config, results_folder, settings_yaml
from algorithms.evaluate.config import EvaluateConfig, check_limits, check_reflection, validate_engine
from algorithms.evaluate.console import print_comparison, print_scores
from algorithms.evaluate.problems import make_environment, sampling_seed, select_problems
from algorithms.evaluate.results import PART, RESPONSES, SCORES, open_results, stored_part_size
from algorithms.evaluation.fingerprint import digest_model, digest_problems
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
from r3env.core import VerifiableEnv


def run(argv: Sequence[str] | None) -> int:
    """Run the command line; return the exit code."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.compare:
        print_comparison(*arguments.compare)
    else:
        evaluate(arguments)
    return DONE


def evaluate(arguments: argparse.Namespace) -> Path:
    """Evaluate a model; resume an evaluation that was interrupted; print the scores of a finished one again.

    Returns:
        The folder with `evaluation.yaml`, `responses/` and `scores.json`.

    Raises:
        ConfigError: an argument or a setting is not valid; the line names it, and the fix.
    """
    config, seed = resolve_config(arguments)
    benchmarks = config.benchmarks_settings
    environment = make_environment(config)
    check_limits(config, environment)
    check_reflection(config, environment)
    uids = select_problems(environment, config)
    path = results_folder(arguments, config, environment.parts)
    folder = ResponseFolder(path / RESPONSES)
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    size = stored_part_size(path) or part_size(evaluation.samples, runners.max_num_seqs, runners.num_env_runners)
    cut = parts(uids, size)
    training = Sampling(runners.temperature, runners.top_p, runners.max_response_tokens)
    complete = all(folder.has(number) for number in range(len(cut)))
    if not complete:
        validate_engine(config, environment, uids)
        fetch_model(config.rl_module_settings)
    digests = {
        "benchmarks": digest_problems(environment.queries, uids),
        "model": digest_model(config.rl_module_settings),
    }
    open_results(path, settings_yaml(config, seed), {**digests, PART: size}, complete=complete)
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
                truncator=_truncator(config, environment),
                seed=sampling_seed(seed, benchmarks),
                on_progress=counter.update,
            )
    try:
        responses = folder.read()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    scores = benchmark_scores(responses, evaluation.k, benchmarks.limits)
    write_json(path / SCORES, _plain(scores))
    print_scores(scores, path)
    return path


def _truncator(config: EvaluateConfig, environment: VerifiableEnv) -> AttemptTruncator | None:
    """Make what shortens attempts for second tries; None, and no tokenizer is read, where there are none."""
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
