"""Select the problems: some of each benchmark, or those that an earlier evaluation found hard."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError, shown
from algorithms.config.sections import BenchmarksSettings, EnvironmentSettings
from algorithms.evaluation.config import BenchmarksConfig
from algorithms.evaluation.metrics import by_problem
from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.results import RESPONSES, read_fingerprint, read_settings
from algorithms.evaluation.sampling import held_out_sample
from algorithms.utils.files import user_path
from r3env.data.sources import has_preset
from r3env.envs.mixture import MixtureEnv
from r3env.registry import constructor_parameters

_MIXTURE = "r3env/Mixture-v0"
SOLVED_AT_MOST = 1  # of the earlier answers to a hard problem


def make_environment(config: BenchmarksConfig) -> MixtureEnv:
    """Make one environment of all benchmarks; the configuration then names it too, for the engines' processes.

    An environment that takes no data is a benchmark of its own, and the parts of a mixture are benchmarks.

    Raises:
        ConfigError: no problems are named, or those that are cannot be read.
    """
    settings, benchmarks = config.environment_settings, config.benchmarks_settings
    mixture = is_mixture(settings.id)
    if mixture and benchmarks.data and benchmarks.data != _part_sources(settings):
        raise ConfigError(
            f"environment.id: the problems of {settings.id} are those of its parts, which benchmarks.data cannot "
            "replace; fix: environment.id=r3env/Math-v0 environment.options={}"
        )
    asked = _mixture_settings(config) if mixture else _benchmark_settings(config)
    try:
        environment = MixtureEnv(**asked.constructor_arguments())
        if not mixture and not benchmarks.data and "data" in constructor_parameters(settings.id):
            raise ConfigError("benchmarks.data: no problems are named; fix: --data FILE, or --data NAME=preset:NAME")
        len(environment.queries)  # reads the data
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(f"{'benchmarks.data' if benchmarks.data else 'environment.id'}: {error}") from error
    config.apply({"environment": asked.model_dump(), "evaluation": {"data": None, "columns": {}}})
    return environment


def is_mixture(environment_id: str) -> bool:
    """Return whether an id is that of `r3env/Mixture-v0`, whose problems are named by its options."""
    return environment_id.rpartition(":")[2] == _MIXTURE


def _part_sources(mixture: EnvironmentSettings) -> dict[str, Any]:
    """Return the data of a mixture's parts by name, which an `evaluation.yaml` has beside its `benchmarks.data`."""
    parts = mixture.options.get("environments")
    described = parts if isinstance(parts, Mapping) else {}
    options = {name: part.get("options") for name, part in described.items() if isinstance(part, Mapping)}
    return {name: own.get("data") if isinstance(own, Mapping) else None for name, own in options.items()}


def _mixture_settings(config: BenchmarksConfig) -> EnvironmentSettings:
    """Return a mixture's own parts, with what `evaluation` sets for all of them, as in training."""
    arguments = config.evaluation_settings.held_out(config.environment_settings.constructor_arguments())
    given = EnvironmentSettings.from_constructor_arguments(arguments)
    return EnvironmentSettings(id=_MIXTURE).changed("environment", given)


def _benchmark_settings(config: BenchmarksConfig) -> EnvironmentSettings:
    """Return a part for each source, made like the configured environment; that alone where there is none.

    Its options are each part's: a mixture has arguments of its own, such as `seed`, and would keep them.
    """
    settings, benchmarks = config.environment_settings, config.benchmarks_settings
    sources = {name: _source_arguments(config, source) for name, source in benchmarks.data.items()}
    parts: dict[str, Any] = {}
    for name, own in (sources or {_benchmark_name(settings.id): {}}).items():
        options = {**settings.options, **own}
        parts[name] = {"id": settings.id, **({"options": options} if options else {})}
    joined = {"id": _MIXTURE, "data": None, "columns": {}, "options": {"environments": parts}}
    return settings.changed("environment", joined)


def _source_arguments(config: BenchmarksConfig, source: str) -> dict[str, Any]:
    """Return data and columns by training's rule: where a preset knows columns, only `evaluation.data` has others."""
    evaluation, inherited = config.evaluation_settings, config.environment_settings.columns
    columns = config.benchmarks_settings.columns or evaluation.columns
    if has_preset(source):
        columns = evaluation.columns if source == evaluation.environment_arguments().get("data") else {}
    asked = evaluation.changed("evaluation", {"data": source, "columns": columns})
    return asked.held_out({"columns": inherited} if inherited else {})


def select_problems(environment: MixtureEnv, config: BenchmarksConfig) -> list[str]:
    """Return the uids to sample: `evaluation.limit` of each benchmark, of these only the hard ones where configured."""
    benchmarks, limit = config.benchmarks_settings, config.evaluation_settings.limit
    uids = list(environment.uids)
    asked = [
        uid
        for name in environment.parts
        for uid in held_out_sample([uid for uid in uids if uid.startswith(f"{name}/")], limit)
    ]
    if benchmarks.hard_for is None:
        return asked
    folder = user_path(benchmarks.hard_for)
    earlier, samples = _read_finished(folder)
    hard = {
        f"{name}/{uid}"
        for name in environment.parts
        for uid, problem in by_problem(earlier, name).items()
        if sum(response.correct for response in problem) <= SOLVED_AT_MOST
    }
    if not hard.intersection(asked):
        raise ConfigError(
            f"benchmarks.hard_for: none of the {len(asked)} problems is hard for {shown(benchmarks.hard_for)}; "
            "fix: the same names in benchmarks.data"
        )
    of = len({(response.benchmark, response.uid) for response in earlier})
    asked = [uid for uid in asked if uid in hard]
    print(
        f"{folder}: {len(asked)} of {of} problems, {samples} answers each, at most {SOLVED_AT_MOST} correct",
        file=sys.stderr,
    )
    return asked


def sampling_seed(seed: int, benchmarks: BenchmarksSettings) -> str:
    """Return the seed of all answers; another one where earlier answers selected the problems."""
    return str(seed) if benchmarks.hard_for is None else f"{seed}, hard"


def _benchmark_name(environment_id: str) -> str:
    return re.sub(r"[^\w.-]+", "-", environment_id.rpartition(":")[2].rpartition("/")[2])


def _read_finished(folder: Path) -> tuple[list[Response], int]:
    """Return all responses of an evaluation, and how many each problem has.

    Raises:
        ConfigError: it is not finished: a problem without answers would count as not hard.
    """
    try:
        responses = ResponseFolder(folder / RESPONSES).read()
        samples = int(read_settings(folder)["evaluation"]["samples"])
        problems = sum(one["problems"] for one in read_fingerprint(folder)["benchmarks"].values())
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise ConfigError(f"benchmarks.hard_for: {error}") from error
    if samples <= SOLVED_AT_MOST:
        raise ConfigError(
            f"benchmarks.hard_for: {folder} has {samples} answer of each problem, by which all are hard; fix: an "
            "evaluation with evaluation.samples=8, say"
        )
    if len(responses) < problems * samples:
        raise ConfigError(
            f"benchmarks.hard_for: {folder} is not finished: {len(responses) // samples} of {problems} problems, "
            f"{samples} answers each; fix: repeat the command that began it"
        )
    return responses, samples
