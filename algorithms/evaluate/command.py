"""`python -m algorithms.evaluate`: resolve the configuration, sample what is missing, write and print scores."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError
from algorithms.evaluate.cli_inputs import parser, resolve_config, results_folder, settings_yaml
from algorithms.evaluate.config import EvaluateConfig, check_limits, check_reflection, validate_engine
from algorithms.evaluate.console import print_comparison, print_scores
from algorithms.evaluate.problems import make_environment, sampling_seed, select_problems
from algorithms.evaluate.results import PART, RESPONSES, SCORES, open_results, stored_part_size
from algorithms.evaluation.confidence import Scale
from algorithms.evaluation.fingerprint import digest_model, digest_problems
from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.no_answer import missing_answers
from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.resumable import part_size, parts, sample_parts
from algorithms.evaluation.sampling import evaluation_sampling, make_truncator, training_sampling
from algorithms.models.causal_lm import read_config
from algorithms.models.names import context_length, fetch_model, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.models.unused_token import unused_token
from algorithms.preflight.ray_session import start_ray
from algorithms.rollout.attempts import AttemptTruncator
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
    training = training_sampling(runners)
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
        which = _which_problems(len(uids), len(environment.uids), evaluation.limit)
        title = f"evaluating {config.rl_module_settings.model}: {which} × {evaluation.samples} answers"
        with inference_workers(config, start_ray) as workers, Counter(title) as counter:
            sample_parts(
                workers.rollout,
                environment,
                cut,
                folder,
                samples=evaluation.samples,
                sampling=replace(evaluation_sampling(evaluation, training), asked_token=_asked_token(config)),
                truncator=_truncator(config, environment),
                seed=sampling_seed(seed, benchmarks),
                on_progress=counter.update,
            )
    try:
        responses = folder.read()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    scale = Scale(benchmarks.confidence_beta, benchmarks.confidence_reference) if benchmarks.confidence else None
    same = {name: part.same_answer for name, part in environment.parts.items()}
    scores = benchmark_scores(responses, evaluation.k, benchmarks.limits, scale, same)
    write_json(path / SCORES, _plain(scores))
    print_scores(scores, path, _missing_answers(environment, responses))
    return path


def _missing_answers(environment: VerifiableEnv, responses: Sequence[Response]) -> list[str]:
    """Return a line for each benchmark in most of whose responses no answer was found."""

    def form(response: Response) -> str:
        return environment.answer_form(environment.query(f"{response.benchmark}/{response.uid}"))

    benchmarks = dict.fromkeys(response.benchmark for response in responses)
    each = {name: [one for one in responses if one.benchmark == name] for name in benchmarks}
    lines = (missing_answers(name, own, lambda one: one.response, form) for name, own in each.items())
    return list(filter(None, lines))


def _which_problems(count: int, total: int, limit: int | None) -> str:
    """Say how many problems are evaluated, and of how many: a run's limit is its benchmarks' as well."""
    if count == total:
        return f"{count} problems"
    return f"{count} of {total} problems" + (f" (evaluation.limit={limit})" if limit is not None else "")


def _truncator(config: EvaluateConfig, environment: VerifiableEnv) -> AttemptTruncator | None:
    """Make what shortens attempts for second tries; None, and no tokenizer is read, where there are none."""
    if not config.evaluation_settings.reflection:
        return None
    return make_truncator(config, _tokenizer(config), environment, context_length(config.rl_module_settings))


def _asked_token(config: EvaluateConfig) -> int | None:
    """Return the token whose log-prob behind an answer is its confidence; None where none is wanted."""
    settings, module = config.benchmarks_settings, config.rl_module_settings
    if not settings.confidence:
        return None
    model = read_config(resolve_model(module.model), module.revision, module.trust_remote_code).get_text_config()
    wanted, name = settings.confidence_token, "benchmarks.confidence_token"
    return unused_token(_tokenizer(config), model.vocab_size, wanted, name)


def _tokenizer(config: EvaluateConfig) -> Any:
    module = config.rl_module_settings
    return load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)


def _plain(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def plain(values: Mapping[str, Score]) -> dict[str, Any]:
        return {name: asdict(score) for name, score in values.items()}

    return {
        name: {**one, "scores": plain(one["scores"]), "levels": plain(one["levels"])} for name, one in scores.items()
    }
