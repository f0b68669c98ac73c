"""Which problems are asked: some of each benchmark, or those that an earlier evaluation found hard."""

import sys
from pathlib import Path

from algorithms.configuration.errors import ConfigError, shown
from algorithms.evaluate.config import EvaluateConfig
from algorithms.evaluate.evaluation import held_out_sample
from algorithms.evaluate.responses import Response, ResponseFolder
from algorithms.evaluate.results import RESPONSES, read_asked, read_settings
from algorithms.evaluate.scores import by_problem
from r3env.mixture_env import MixtureEnv


def environment_of(config: EvaluateConfig) -> MixtureEnv:
    """All benchmarks as one environment; the configuration then names it too, for the engines' processes."""
    settings, benchmarks = config.environment_settings, config.benchmarks_settings
    columns = benchmarks.columns or config.evaluation_settings.columns or settings.columns
    common = settings.changed("environment", {"data": None, "columns": {}}).constructor_arguments()
    described = {
        name: {"id": settings.id, "options": {"data": source, **({"columns": columns} if columns else {})}}
        for name, source in benchmarks.data.items()
    }
    arguments = {"environments": described, **common}
    try:
        environment = MixtureEnv(**arguments)
        len(environment.queries)  # reads the data
    except (ValueError, OSError) as error:
        raise ConfigError(f"benchmarks.data: {error}") from error
    config.apply(
        {
            "environment": {
                "id": "r3env/Mixture-v0",
                "data": None,
                "columns": {},
                "options": {**settings.options, "environments": described},
            },
            "evaluation": {"data": None, "columns": {}},
        }
    )
    return environment


def chosen(environment: MixtureEnv, config: EvaluateConfig) -> list[str]:
    """The problems to ask: `evaluation.limit` of each benchmark, and of these only the hard ones where asked for."""
    benchmarks, limit = config.benchmarks_settings, config.evaluation_settings.limit
    uids = list(environment.uids)
    asked = [
        uid
        for name in benchmarks.data
        for uid in held_out_sample([uid for uid in uids if uid.startswith(f"{name}/")], limit)
    ]
    if benchmarks.hard_for is None:
        return asked
    folder, most = Path(benchmarks.hard_for).expanduser(), benchmarks.solved_at_most
    earlier, samples = _finished(folder)
    hard = {
        f"{name}/{uid}"
        for name in benchmarks.data
        for uid, problem in by_problem(earlier, name).items()
        if sum(response.correct for response in problem) <= most
    }
    if not hard.intersection(asked):
        raise ConfigError(
            f"benchmarks.hard_for: none of the {len(asked)} problems is hard for {shown(benchmarks.hard_for)}; "
            "fix: a larger benchmarks.solved_at_most, or the same names in benchmarks.data"
        )
    of = len({(response.benchmark, response.uid) for response in earlier})
    asked = [uid for uid in asked if uid in hard]
    print(f"{folder}: {len(asked)} of {of} problems, {samples} answers each, at most {most} right", file=sys.stderr)
    return asked


def _finished(folder: Path) -> tuple[list[Response], int]:
    """All responses of an evaluation, and how many each problem has.

    Raises:
        ConfigError: it is not finished: a problem that was not asked would count as not hard.
    """
    try:
        responses = ResponseFolder(folder / RESPONSES).read()
        samples = int(read_settings(folder)["evaluation"]["samples"])
        problems = sum(one["problems"] for one in read_asked(folder)["benchmarks"].values())
    except (ValueError, LookupError) as error:
        raise ConfigError(f"benchmarks.hard_for: {error}") from error
    if len(responses) < problems * samples:
        raise ConfigError(
            f"benchmarks.hard_for: {folder} is not finished: {len(responses) // samples} of {problems} problems, "
            f"{samples} answers each; fix: the command that began it goes on"
        )
    return responses, samples
