"""Evaluate a model on benchmarks: sample what is missing part by part, write and print the scores."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from algorithms.config.base import BaseConfig
from algorithms.config.consistency import check_second_tries
from algorithms.config.errors import ConfigError
from algorithms.config.files import to_yaml
from algorithms.config.sections import RunSettings
from algorithms.evaluation.config import BenchmarksConfig, check_limits, validate_engine
from algorithms.evaluation.console import print_scores
from algorithms.evaluation.metrics import benchmark_scores
from algorithms.evaluation.no_answer import missing_answers
from algorithms.evaluation.problems import make_environment, sampling_seed, select_problems
from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.results import (
    PART,
    RESPONSES,
    SCORES,
    digest_model,
    digest_problems,
    open_results,
    stored_part_size,
)
from algorithms.evaluation.sampling import Answer, Draw, Sampler, evaluation_sampling, make_truncator
from algorithms.evaluation.votes import Scale
from algorithms.models.causal_lm import read_config
from algorithms.models.names import context_length, fetch_model, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.models.unused_token import unused_token
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.conversation import conversation, last_text
from algorithms.rollout.types import OnProgress, Request, Rollout, Sampling
from algorithms.rollout.workers import inference_workers
from algorithms.utils.files import write_json
from algorithms.utils.progress import Counter
from algorithms.utils.statistics import Score
from r3env.core import VerifiableEnv


def evaluate(config: BenchmarksConfig, seed: int, out: str | None, start_ray: Callable[[BaseConfig], object]) -> Path:
    """Evaluate a model; resume an evaluation that was interrupted; print the scores of a finished one again.

    Args:
        config: whose environment becomes one of all benchmarks.
        seed: of the sampling.
        out: the folder; None: one named after the model and the benchmarks.
        start_ray: starts Ray where engines are actors.

    Returns:
        The folder with `evaluation.yaml`, `responses/` and `scores.json`.

    Raises:
        ConfigError: a setting is not valid; the line names it, and the fix.
    """
    benchmarks = config.benchmarks_settings
    environment = make_environment(config)
    check_limits(config, environment)
    check_second_tries(config.evaluation_settings, environment.max_turns)
    uids = select_problems(environment, config)
    path = results_folder(out, config, environment.parts)
    folder = ResponseFolder(path / RESPONSES)
    evaluation, runners = config.evaluation_settings, config.env_runners_settings
    size = stored_part_size(path) or part_size(evaluation.samples, runners.max_num_seqs, runners.num_env_runners)
    cut = parts(uids, size)
    training = Sampling.of(runners)
    complete = all(folder.has(number) for number in range(len(cut)))
    answered = complete or holds_answers(folder, cut)
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
                answered=answered,
            )
    try:
        responses = folder.read(cut, evaluation.samples)
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


def _truncator(config: BenchmarksConfig, environment: VerifiableEnv) -> AttemptTruncator | None:
    """Make what shortens attempts for second tries; None, and no tokenizer is read, where there are none."""
    if not config.evaluation_settings.reflection:
        return None
    return make_truncator(config, _tokenizer(config), environment, context_length(config.rl_module_settings))


def _asked_token(config: BenchmarksConfig) -> int | None:
    """Return the token whose log-prob behind an answer is its confidence; None where none is wanted."""
    settings, module = config.benchmarks_settings, config.rl_module_settings
    if not settings.confidence:
        return None
    model = read_config(resolve_model(module.model), module.revision, module.trust_remote_code).get_text_config()
    wanted, name = settings.confidence_token, "benchmarks.confidence_token"
    return unused_token(_tokenizer(config), model.vocab_size, wanted, name)


def _tokenizer(config: BenchmarksConfig) -> Any:
    module = config.rl_module_settings
    return load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)


def _plain(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def plain(values: Mapping[str, Score]) -> dict[str, Any]:
        return {name: asdict(score) for name, score in values.items()}

    return {
        name: {**one, "scores": plain(one["scores"]), "levels": plain(one["levels"])} for name, one in scores.items()
    }


ReportingRollout = Callable[[Sequence[Request], OnProgress | None], list[Rollout]]


def part_size(samples: int, max_num_seqs: int, num_env_runners: int) -> int:
    """Return how many problems make a part: some eight batches of an engine, the most that an interruption can cost."""
    return max(1, 8 * max_num_seqs * max(1, num_env_runners) // samples)


def parts(uids: Sequence[str], size: int) -> list[list[str]]:
    """Cut the problems into parts."""
    return [list(uids[start : start + size]) for start in range(0, len(uids), size)]


def holds_answers(folder: ResponseFolder, cut: Sequence[Sequence[str]]) -> bool:
    """Return whether a response that is stored has not failed.

    Raises:
        ConfigError: a part is damaged.
    """
    try:
        stored = (folder.read_part(number) for number in range(len(cut)) if folder.has(number))
        return any(not response.failed for part in stored for response in part)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def sample_parts(
    rollout: ReportingRollout,
    environment: VerifiableEnv,
    cut: Sequence[Sequence[str]],
    folder: ResponseFolder,
    *,
    samples: int,
    sampling: Sampling,
    truncator: AttemptTruncator | None,
    seed: str,
    on_progress: OnProgress,
    answered: bool = False,
) -> None:
    """Sample the parts that `folder` does not have yet.

    The seeds of a problem's answers depend on `seed` and its uid alone, not on the other problems or on interruptions.

    Args:
        rollout: runs requests; rollouts come back in the order of their ids.
        environment: a mixture whose parts are the benchmarks; gives levels.
        cut: uids by part, see `parts`.
        folder: what was sampled before, and where more is written.
        samples: answers per problem.
        sampling: how they are sampled.
        truncator: of wrong answers, which get a second try; None: there are no second tries.
        seed: of everything.
        on_progress: called with how many answers of the missing parts are there: a rate counts no old ones. Second
            tries come on top when it is known how many there are.
        answered: whether the parts that `folder` has hold an answer, see `holds_answers`.

    Raises:
        EpisodesFailed: all episodes failed, those of the parts that `folder` has too; the part is sampled again next
            time.
    """
    missing = [(number, uids) for number, uids in enumerate(cut) if not folder.has(number)]
    counted = _Counted(rollout, on_progress, sum(len(uids) for _, uids in missing) * samples)

    def seed_of(draw: Draw) -> int:
        first = _hash(seed, draw.uid, draw.sample)
        return _hash(first, "again") if draw.second else first

    sampler = Sampler(counted.rollout, samples, sampling, seed_of, truncator, answered=answered)
    for number, uids in missing:
        answers = sampler.sample(uids)
        folder.write(number, [_response(answer, environment) for problem in answers for answer in problem])


class _Counted:
    """Runs requests and reports how many of all are done."""

    def __init__(self, rollout: ReportingRollout, on_progress: OnProgress, total: int) -> None:
        self._rollout, self._report, self._done, self._total = rollout, on_progress, 0, total

    def rollout(self, requests: Sequence[Request]) -> list[Rollout]:
        self._total += sum(request.prompt.attempt is not None for request in requests)
        before = self._done
        rollouts = self._rollout(requests, lambda count, _: self._report(before + count, self._total))
        self._done += len(requests)
        self._report(self._done, self._total)
        return rollouts


def _hash(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _response(answer: Answer, environment: VerifiableEnv) -> Response:
    first, second = answer.first, answer.second
    benchmark, _, uid = first.uid.partition("/")
    text = last_text(first) if first.response_length else ""
    return Response(
        benchmark=benchmark,
        uid=uid,
        level=environment.queries[first.uid].level or None,
        sample=answer.sample,
        prompt="\n\n".join(message["content"] for message in conversation(first) if message["role"] == "user"),
        response=text,
        answer=first.answer,
        correct=first.correct,
        truncated=first.truncated,
        verdict=first.verdict,
        tokens=first.response_length,
        reflected_response=last_text(second) if second else None,
        reflected_correct=answer.reflected_correct,
        asked_logprob=first.asked_logprob,
    )


def results_folder(out: str | None, config: BenchmarksConfig, benchmarks: Iterable[str]) -> Path:
    """Return the folder that results go into."""
    model = re.sub(r"[^\w.-]+", "-", config.rl_module_settings.model).strip("-")[-80:]
    return Path(out or Path("evaluations") / f"{model}-{'-'.join(benchmarks)}"[:200])


def settings_yaml(config: BenchmarksConfig, seed: int) -> str:
    """Return the whole configuration as YAML that can be read back."""
    return to_yaml(config, RunSettings(seed=seed, name="evaluation"), algorithm="evaluate")


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
