"""Check, before anything starts, that the configured environment can be made and its problems read."""

import contextlib
import logging
import re
import socket
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium

import r3env  # noqa: F401  registers its environments
from algorithms.config.errors import ConfigError, ServiceError, close_match, did_you_mean, shown
from algorithms.config.registered import find_registered
from algorithms.config.sections import EnvironmentSettings
from algorithms.preflight.held_out import check_held_out
from algorithms.preflight.trial import may_have_functions, sum_decides, try_out
from r3env.agents.types import Policy
from r3env.data.sources import DataError, parse_source
from r3env.opening import EnvIdError, NotRegisteredError, check_id, first_turns, first_turns_of_forms
from r3env.registry import OptionError, UnreachableError, constructor_parameters, to_make

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from r3env.core import VerifiableEnv

_logger = logging.getLogger(__name__)


Opening = str | tuple[Mapping[str, str], ...]  # a user turn, or several turns of which it is the last


_WHERE = "environment.id"
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_NO_CONNECTION = (UnreachableError, ConnectionError, TimeoutError, socket.gaierror, urllib.error.URLError)


@dataclass(frozen=True)
class EnvironmentFacts:
    """Facts about an environment.

    Args:
        queries: of training; None if they are on the Hub and were not fetched.
        held_out: queries of evaluation; None likewise.
        prompts: the first user turns, of training and held out, those with the most bytes first; where other turns
            precede one, all of them.
        guidance: the user turn that asks for a second attempt.
        max_turns: answers that the policy may give in an episode.
        has_own_end: whether it may give more.
        first_prompt: the turns of the first query; empty where no query was read.
        tools: what the policy may call, see `VerifiableEnv.tools`.
        trial: what a few answers got, in a line; empty: none was given.
    """

    queries: int | None
    held_out: int | None
    prompts: Sequence[Opening] = ()
    guidance: str = ""
    max_turns: int = 1
    has_own_end: bool = False
    first_prompt: Sequence[Mapping[str, str]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    trial: str = ""


def validate_environment(config: "BaseConfig", *, fetch: bool = True, trial: bool = False) -> EnvironmentFacts:
    """Make the environment for training and for evaluation and read their queries; warn of unclear rewards.

    Args:
        config: the configuration.
        fetch: whether to read data sets on the Hub too, which downloads them.
        trial: whether to judge a few answers, see `try_out`.

    Raises:
        ConfigError: one line that names `environment.id`, the constructor's argument or the data. It is a
            ServiceError if a server does not answer.
    """
    check_environment_id(config.environment_settings.id)
    with contextlib.ExitStack() as opened:
        return _facts(config, fetch, trial, opened)


def _facts(config: "BaseConfig", fetch: bool, trial: bool, opened: contextlib.ExitStack) -> EnvironmentFacts:
    settings, evaluation = config.environment_settings, config.evaluation_settings
    arguments = settings.constructor_arguments()
    environment = _make(settings.id, arguments, "environment")
    opened.callback(environment.close)
    _check_reward_actors(config, environment)
    _check_summaries(config, environment)
    uids = _queries(environment, "environment", settings.data, fetch)
    _check_concurrency(config, environment)
    prompts, held_out_uids = user_prompts(environment, uids or ()), uids
    if evaluation.data or evaluation.columns:
        held_out = _make(settings.id, evaluation.held_out(arguments), "evaluation")
        opened.callback(held_out.close)
        held_out_uids = _queries(
            held_out, "evaluation", evaluation.environment_arguments().get("data", settings.data), fetch
        )
        prompts += user_prompts(held_out, held_out_uids or ())
        if evaluation.data and uids and held_out_uids:
            generated = "columns" not in constructor_parameters(settings.id)
            check_held_out(environment, uids, held_out, held_out_uids, generated=generated)
    return EnvironmentFacts(
        queries=None if uids is None else len(uids),
        held_out=None if held_out_uids is None else len(held_out_uids),
        prompts=longest_first(prompts),
        guidance=environment.reflection_guidance,
        max_turns=environment.max_turns,
        has_own_end=environment.has_own_end,
        first_prompt=first_turns(environment, uids[0]) if uids else (),
        tools=environment.tools,
        trial=_tried(config, environment, uids or (), trial),
    )


def _check_reward_actors(config: "BaseConfig", environment: "VerifiableEnv") -> None:
    actors = config.env_runners_settings.reward_actor
    if actors.environments and not actors.replicas:
        raise ConfigError(
            "env_runners.reward_actor.environments: has no effect without actors; fix: "
            "env_runners.reward_actor.replicas=1"
        )
    if actors.environments and getattr(environment, "takes_completions", False):
        raise ConfigError(
            f"env_runners.reward_actor.environments: {config.environment_settings.id} runs agents, which speak to "
            "their env runner; fix: env_runners.reward_actor.environments=false"
        )
    if actors.replicas and not actors.environments and not may_have_functions(environment):
        raise ConfigError(
            f"env_runners.reward_actor.replicas: {config.environment_settings.id} has no reward functions that actors "
            "could hold; fix: env_runners.reward_actor.replicas=0, or environment.id=r3env/Function-v0"
        )


def _check_summaries(config: "BaseConfig", environment: "VerifiableEnv") -> None:
    limit, name = config.env_runners_settings.max_context_tokens, config.environment_settings.id
    agents = getattr(environment, "takes_completions", False)
    if config.TRAINS and limit is not None and (agents or environment.max_turns == 1):
        why = "runs agents, which write their contexts themselves" if agents else "has episodes of one turn (max_turns)"
        more = "" if agents else ", or a larger environment.max_turns"
        fix = f"env_runners.max_context_tokens=null{more}"
        raise ConfigError(f"env_runners.max_context_tokens: {limit} has no effect: {name} {why}; fix: {fix}")


def _tried(config: "BaseConfig", environment: "VerifiableEnv", uids: Sequence[str], trial: bool) -> str:
    runners = config.env_runners_settings
    if runners.reward_actor.environments:
        return "not tried: environments are made in their actors (env_runners.reward_actor)" if trial else ""
    judges = not runners.reward_actor.replicas
    if judges and (warning := sum_decides(environment, uids)):
        _logger.warning(warning)
    policy = Policy(runners.temperature, 1.0, runners.max_response_tokens)
    reflects = config.quoted_tokens() > 0 or config.evaluation_settings.reflection
    return try_out(environment, uids, policy=policy, reflects=reflects, judges=judges) if trial else ""


def user_prompts(environment: "VerifiableEnv", uids: Sequence[str]) -> list[Opening]:
    """Return the first user turn of each query, with the turns before it where there are any.

    Raises:
        ConfigError: the environment cannot make one.
    """
    try:
        conversations = (turns for uid in uids for turns in first_turns_of_forms(environment, uid))
        return [turns if len(turns) > 1 else turns[-1]["content"] for turns in conversations]
    except Exception as error:  # prompt is the user's
        raise _refusal(f"{_WHERE}: {_line(error)}", error) from error


def opening_text(opening: Opening) -> str:
    """Return the text of all turns."""
    return opening if isinstance(opening, str) else "\n".join(turn["content"] for turn in opening)


def longest_first(prompts: Sequence[Opening]) -> tuple[Opening, ...]:
    """Sort prompts by their bytes, of which a token has at least one."""
    return tuple(sorted(prompts, key=lambda prompt: len(opening_text(prompt).encode()), reverse=True))


def is_on_hub(data: str | None) -> bool:
    """Return whether `environment.data` names a data set on the Hub.

    It may also name a file, embedded problems, or what an environment of another kind makes of it.
    """
    try:
        return data is not None and parse_source(data).kind == "hub"
    except DataError:
        return False


def check_environment_id(name: str) -> None:
    """Check that an id names an environment; raises ConfigError."""
    try:
        find_registered(name)
        check_id(name)
    except EnvIdError as error:
        raise ConfigError(f"{_WHERE}: {shown(name)}: {error}") from error
    except NotRegisteredError as error:
        match = close_match(name, error.known) or close_match(name.rpartition(":")[2], error.known)
        ending = f"did you mean {match}?" if match else did_you_mean(name, error.known)
        raise ConfigError(f"{_WHERE}: {shown(name)} is not registered; {ending}") from None


def _make(name: str, arguments: dict[str, Any], section: str) -> "VerifiableEnv":
    from r3env.core import VerifiableEnv

    try:
        environment = gymnasium.make(to_make(name), disable_env_checker=True, **arguments).unwrapped
    except TypeError as error:
        if unexpected := _UNEXPECTED.search(str(error)):
            argument = unexpected[1]
            named = argument in EnvironmentSettings.argument_names()
            place = f"environment.{argument}" if named else f"environment.options.{argument}"
            raise ConfigError(f"{place}: {name} takes no argument {argument}; fix: leave it out") from None
        raise ConfigError(f"{_WHERE}: {shown(name)} cannot be made: {_line(error)}") from error
    except OptionError as error:
        raise _refusal(_option(error), error) from error
    except Exception as error:  # the environment is the user's: its constructor can raise anything
        raise _refusal(f"{_place(error, section)}: {shown(name)} cannot be made: {_line(error)}", error) from error
    if not isinstance(environment, VerifiableEnv):
        raise ConfigError(
            f"{_WHERE}: {shown(name)} is not a r3env.core.VerifiableEnv but a {type(environment).__name__}; fix: "
            "subclass it"
        )
    return environment


def _queries(environment: "VerifiableEnv", section: str, data: str | None, fetch: bool) -> list[str] | None:
    if is_on_hub(data) and not fetch:
        return None
    try:
        return environment.uids
    except OptionError as error:
        raise _refusal(_option(error), error) from error
    except Exception as error:  # load_queries is the user's
        raise _refusal(f"{_place(error, section)}: {_line(error)}", error) from error


def _check_concurrency(config: "BaseConfig", environment: "VerifiableEnv") -> None:
    """Check that the environment can hold the episodes that run at a time."""
    training, runners = config.training_settings, config.env_runners_settings
    sampled = training.queries_per_step * training.group_size
    try:
        environment.check_concurrency(min(sampled, max(1, runners.num_env_runners) * runners.max_num_seqs))
    except OptionError as error:
        raise _refusal(_option(error), error) from error
    except Exception as error:  # the environment is the user's
        raise _refusal(f"{_WHERE}: {_line(error)}", error) from error


def _refusal(message: str, error: BaseException) -> ConfigError:
    """Return the error with this message: a ServiceError if `error`, or what caused it, is a failed connection."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _NO_CONNECTION):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ConfigError(message) if cause is None else ServiceError(message)


def _place(error: Exception, section: str) -> str:
    return f"{section}.data" if isinstance(error, DataError) else _WHERE


def _option(error: OptionError) -> str:
    """Return what is wrong with an argument, after the setting that gives it."""
    section = "environment" if error.option in EnvironmentSettings.argument_names() else "environment.options"
    return f"{section}.{error}"


def _line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
