"""The child's side of `r3env/Function-v0`: call reward functions, and read their results.

All of it runs in processes that `r3env.child_processes.subprocess_scorer` kills at a deadline. Nothing here is for
others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from r3env.core import UNTRUSTED, Reason, Verdict, reaches, reason_of
from r3env.envs.function_loading import RewardFunction, labels, load, make
from r3env.named_functions import FunctionLoadError, describe, resolved

# What every function may take; the other arguments are columns.
ARGUMENTS = ("problem", "response", "answer", "uid", "level")
TRL_ARGUMENTS = ("prompts", "completions", "log_extra", "log_metric")
LONGEST_FEEDBACK = 4000


@dataclass(frozen=True)
class Opinion:
    """One function's judgment of a response.

    Args:
        value: The reward; a correct answer's is 1 where the function only says that it is correct.
        correct: Whether the answer is correct, if the function says so.
        reason: Of a verdict.
        feedback: Of a verdict.
        answer: Of a verdict.
    """

    value: float
    correct: bool | None = None
    reason: str | None = None
    feedback: str = ""
    answer: str | None = None


def make_description(names: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Import the functions; return what describes each one's arguments, or why the first bad one is bad."""
    try:
        functions = [load(name) for name in names]
    except FunctionLoadError as error:
        said: dict[str, Any] = {"error": str(error)}
    else:
        said = {"functions": [asdict(function.parameters) for function in functions]}
    return lambda: said


def make_judge(
    names: tuple[str, ...], weights: tuple[float, ...], correct_at: float, messages: bool | None
) -> Callable[..., dict[str, Any]]:
    """Import the functions; return what judges a row, its first user turn and the turns before it, see `judge`."""
    return partial(judge, [make(name) for name in names], weights, correct_at, messages)


def judge(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    correct_at: float,
    messages: bool | None,
    row: Mapping[str, Any],
    prompt: str,
    turns: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Judge a response by all functions; the fields of a `Verdict`, and `by_sum`: whether the numbers' sum decided."""
    opinions: list[Opinion | None] = []
    for function in functions:
        try:
            opinions.append(read(call(function, row, prompt, messages, turns)))
        except (Exception, SystemExit) as error:
            return failure(function, error, messages)
    return agree([function.name for function in functions], weights, correct_at, opinions)


def failure(function: RewardFunction, error: BaseException, messages: bool | None) -> dict[str, Any]:
    """Return the fields of the verdict on a response that a function raised on."""
    text = f"{function.name}: {describe(error)}{_hint(error, function, messages)}"
    return fields(Verdict(False, Reason.ERROR, feedback=text))


def agree(
    names: Sequence[str], weights: Sequence[float], correct_at: float, opinions: Sequence[Opinion | None]
) -> dict[str, Any]:
    """Return what functions say together of a response: see `judge`."""
    told = zip(weights, labels(names), opinions, strict=True)
    given = [(weight, label, opinion) for weight, label, opinion in told if opinion is not None]
    if not given:
        text = f"{' and '.join(names)} returned None: there is no reward"
        return fields(Verdict(False, Reason.UNGRADED, feedback=text))
    verdict = combine([(weight, opinion) for weight, _, opinion in given], correct_at)
    rewards = {label: opinion.value for _, label, opinion in given}
    by_sum = all(opinion.correct is None for _, _, opinion in given)
    return {**fields(replace(verdict, rewards=rewards)), "by_sum": by_sum}


def combine(opinions: Sequence[tuple[float, Opinion]], correct_at: float) -> Verdict:
    """Add up weighted opinions; if none says whether the answer is correct, the sum decides."""
    score = math.fsum(weight * opinion.value for weight, opinion in opinions)
    said = [opinion for _, opinion in opinions if opinion.correct is not None]
    feedback = "\n".join(opinion.feedback for opinion in said if opinion.feedback)
    untrusted = next((one.reason for one in said if one.reason in UNTRUSTED), None)
    if untrusted is not None:
        return Verdict(False, untrusted, feedback=feedback)
    correct = all(opinion.correct for opinion in said) if said else reaches(score, correct_at)
    reason: str = Reason.EQUAL if correct else Reason.DIFFERENT
    reason = next((one.reason for one in said if one.reason and one.correct == correct), reason)
    answer = next((one.answer for one in said if one.answer is not None), None)
    return Verdict(correct, reason, score, feedback, answer)


@dataclass(frozen=True)
class Response:
    """A response to judge.

    Args:
        row: Every name that a function may take, with its value.
        prompt: The first user turn.
        turns: Those before it.
    """

    row: Mapping[str, Any]
    prompt: str
    turns: Sequence[Mapping[str, str]] = ()


def call(
    function: RewardFunction,
    row: Mapping[str, Any],
    prompt: str,
    messages: bool | None,
    turns: Sequence[Mapping[str, str]] = (),
) -> Any:
    """Return what the function returns for a response; see `Response` and `arguments_of`."""
    value = function.function(**arguments_of(function, [Response(row, prompt, turns)], messages))
    return each_of(function, resolved(value), 1)[0]


def arguments_of(function: RewardFunction, responses: Sequence[Response], messages: bool | None) -> dict[str, Any]:
    """Return the arguments for responses, of which only a function that is called as TRL calls takes several.

    Args:
        function: The function.
        responses: What it judges.
        messages: Whether TRL's completions are lists of messages; None: as their annotation has it.
    """
    parameters = function.parameters
    if parameters.trl:
        given = _trl_arguments(responses, parameters.messages if messages is None else messages)
    else:
        given = dict(responses[0].row)
    if not parameters.everything:
        known = (*parameters.required, *parameters.optional)
        given = {name: value for name, value in given.items() if name in known}
    return given


def each_of(function: RewardFunction, value: Any, count: int) -> Sequence[Any]:
    """Return what a function returned for each of `count` responses.

    Raises:
        TypeError: It is no list where it is called as TRL calls.
        ValueError: It has another length.
    """
    if not function.parameters.trl:
        return [value]
    if hasattr(value, "tolist"):  # an array of NumPy or a tensor
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"returned a {type(value).__name__}; as it takes `completions`, it must return a list")
    if len(value) != count:
        raise ValueError(f"returned {len(value)} rewards for {count} completion{'' if count == 1 else 's'}")
    return value


def read(value: Any) -> Opinion | None:
    """Read the result of a function; None: it has no opinion.

    Raises:
        TypeError: It is neither a number nor a bool, a verdict or None.
        ValueError: It is not finite.
    """
    if value is None:
        return None
    if isinstance(value, Verdict):
        value_of = value.score if value.score is not None else float(value.correct)
        answer = None if value.answer is None else str(value.answer)[:LONGEST_FEEDBACK]
        return Opinion(_finite(value_of), bool(value.correct), reason_of(value.reason), str(value.feedback), answer)
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, bool):
        return Opinion(float(value), value)
    if isinstance(value, int | float):
        return Opinion(_finite(value))
    raise TypeError(f"returned a {type(value).__name__}; return a number, a bool, a r3env.core.Verdict or None")


def _trl_arguments(responses: Sequence[Response], messages: bool) -> dict[str, Any]:
    """Return what TRL would give for a batch."""
    names = dict.fromkeys(name for each in responses for name in each.row if name != "response")
    given: dict[str, Any] = {name: [each.row.get(name) for each in responses] for name in names}
    if messages:
        given["prompts"] = [[*each.turns, {"role": "user", "content": each.prompt}] for each in responses]
        given["completions"] = [[{"role": "assistant", "content": each.row["response"]}] for each in responses]
    else:
        given["prompts"] = [each.prompt for each in responses]
        given["completions"] = [each.row["response"] for each in responses]
    given["log_extra"] = given["log_metric"] = _ignore
    return given


def _ignore(*_: Any) -> None:
    """Stand for a function of TRL that writes to its logs."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"returned {value}, which is not finite")
    return float(value)


def _hint(error: BaseException, function: RewardFunction, messages: bool | None) -> str:
    plain = function.parameters.trl and not (function.parameters.messages if messages is None else messages)
    if plain and isinstance(error, TypeError) and "string indices" in str(error):
        return "; fix: if it takes completions as lists of messages, set environment.options.messages=true"
    return ""


def fields(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data."""
    return {**asdict(verdict), "reason": str(verdict.reason), "feedback": verdict.feedback[:LONGEST_FEEDBACK]}
