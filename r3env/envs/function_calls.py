"""The child's side of `r3env/Function-v0`: call reward functions, and read their results.

All of it runs in processes that `r3env.sandbox.subprocess_scorer` kills at a deadline, and nothing here is for others.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from r3env.core import Reason, Verdict
from r3env.envs.function_loading import RewardFunction, labels, load
from r3env.named_functions import FunctionLoadError, describe

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
    reason: Reason | None = None
    feedback: str = ""
    answer: str | None = None


def make_description(names: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Import the functions; return what describes each one's arguments, or why the first bad one is bad."""
    try:
        functions = load(names)
    except FunctionLoadError as error:
        said: dict[str, Any] = {"error": str(error)}
    else:
        said = {"functions": [asdict(function.parameters) for function in functions]}
    return lambda: said


def make_judge(
    names: tuple[str, ...], weights: tuple[float, ...], correct_at: float, messages: bool | None
) -> Callable[..., dict[str, Any]]:
    """Import the functions; return what judges a row, its first user turn and the turns before it, see `judge`."""
    return partial(judge, load(names), weights, correct_at, messages)


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
    opinions: list[tuple[float, Opinion]] = []
    rewards: dict[str, float] = {}
    named = labels([function.name for function in functions])
    for function, weight, label in zip(functions, weights, named, strict=True):
        try:
            opinion = read(call(function, row, prompt, messages, turns))
        except (Exception, SystemExit) as error:
            hint = _hint(error, function, messages)
            return _verdict(Verdict(False, Reason.ERROR, feedback=f"{function.name}: {describe(error)}{hint}"))
        if opinion is not None:
            opinions.append((weight, opinion))
            rewards[label] = opinion.value
    if not opinions:
        text = f"{' and '.join(function.name for function in functions)} returned None: there is no reward"
        return _verdict(Verdict(False, Reason.ERROR, feedback=text))
    by_sum = all(opinion.correct is None for _, opinion in opinions)
    return {**_verdict(replace(combine(opinions, correct_at), rewards=rewards)), "by_sum": by_sum}


def combine(opinions: Sequence[tuple[float, Opinion]], correct_at: float) -> Verdict:
    """Add up weighted opinions; if none says whether the answer is correct, the sum decides."""
    score = math.fsum(weight * opinion.value for weight, opinion in opinions)
    said = [opinion for _, opinion in opinions if opinion.correct is not None]
    feedback = "\n".join(opinion.feedback for opinion in said if opinion.feedback)
    untrusted = next((one.reason for one in said if one.reason in (Reason.TIMEOUT, Reason.ERROR)), None)
    if untrusted is not None:
        return Verdict(False, untrusted, feedback=feedback)
    correct = all(opinion.correct for opinion in said) if said else score >= correct_at
    reason = Reason.EQUAL if correct else Reason.DIFFERENT
    reason = next((one.reason for one in said if one.reason and one.correct == correct), reason)
    answer = next((one.answer for one in said if one.answer is not None), None)
    return Verdict(correct, reason, score, feedback, answer)


def call(
    function: RewardFunction,
    row: Mapping[str, Any],
    prompt: str,
    messages: bool | None,
    turns: Sequence[Mapping[str, str]] = (),
) -> Any:
    """Return what the function returns for a response.

    Args:
        function: The function.
        row: Every name that it may take, with its value.
        prompt: The first user turn.
        messages: Whether TRL's completions are lists of messages; None: as their annotation has it.
        turns: Those before the first user turn.
    """
    parameters = function.parameters
    if parameters.trl:
        given = _trl_arguments(row, prompt, parameters.messages if messages is None else messages, turns)
    else:
        given = dict(row)
    if not parameters.everything:
        known = (*parameters.required, *parameters.optional)
        given = {name: value for name, value in given.items() if name in known}
    value = function.function(**given)
    if inspect.isawaitable(value):
        # waits: the process is killed at a deadline
        value = asyncio.run(_wait_for(value))
    return _only_one(value) if parameters.trl else value


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
        return Opinion(_finite(value_of), bool(value.correct), Reason(value.reason), str(value.feedback), answer)
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, bool):
        return Opinion(float(value), value)
    if isinstance(value, int | float):
        return Opinion(_finite(value))
    raise TypeError(f"returned a {type(value).__name__}; return a number, a bool, a r3env.core.Verdict or None")


def _trl_arguments(
    row: Mapping[str, Any], prompt: str, messages: bool, turns: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """What TRL would give for a batch of one."""
    given: dict[str, Any] = {name: [value] for name, value in row.items() if name != "response"}
    response = row["response"]
    if messages:
        given["prompts"] = [[*turns, {"role": "user", "content": prompt}]]
        given["completions"] = [[{"role": "assistant", "content": response}]]
    else:
        given["prompts"], given["completions"] = [prompt], [response]
    given["log_extra"] = given["log_metric"] = _ignore
    return given


def _ignore(*_: Any) -> None:
    """Stand for a function of TRL that writes to its logs."""


def _only_one(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array of NumPy or a tensor
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"returned a {type(value).__name__}; as it takes `completions`, it must return a list")
    if len(value) != 1:
        raise ValueError(f"returned {len(value)} rewards for 1 completion")
    return value[0]


async def _wait_for(value: Any) -> Any:
    return await value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"returned {value}, which is not finite")
    return float(value)


def _hint(error: BaseException, function: RewardFunction, messages: bool | None) -> str:
    plain = function.parameters.trl and not (function.parameters.messages if messages is None else messages)
    if plain and isinstance(error, TypeError) and "string indices" in str(error):
        return "; fix: if it takes completions as lists of messages, set environment.options.messages=true"
    return ""


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "reason": str(verdict.reason), "feedback": verdict.feedback[:LONGEST_FEEDBACK]}
