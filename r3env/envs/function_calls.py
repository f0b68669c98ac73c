"""The child's side of `r3env/Function-v0`: imports reward functions, calls them, and reads what they return.

All of it runs in processes that `r3env.sandbox.subprocess_scorer` kills at a deadline, and nothing here is for others.
"""

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from r3env.core import Reason, Verdict
from r3env.spelling import nearest

# What every function may take; the other arguments are columns.
ARGUMENTS = ("problem", "response", "answer", "uid", "level")
TRL_ARGUMENTS = ("prompts", "completions", "log_extra", "log_metric")
LONGEST_FEEDBACK = 4000
_LONGEST_ERROR = 400
_START_FIX = "start from the folder that holds it, or put that folder on PYTHONPATH"


class RewardLoadError(Exception):
    """A reward function that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Parameters:
    """What a reward function takes.

    Args:
        required: Names without a default.
        optional: Names with one.
        everything: Whether it takes any other name too (`**kwargs`).
        trl: Whether it is called as TRL calls: a list of everything, here of one element.
        messages: Whether its completions are lists of messages, as their annotation has it.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    everything: bool
    trl: bool
    messages: bool


@dataclass(frozen=True)
class RewardFunction:
    """A reward function by the name that the user gave it."""

    name: str
    function: Callable[..., Any]
    parameters: Parameters

    def call(self, row: Mapping[str, Any], prompt: str, messages: bool | None) -> Any:
        """Return what the function returns for a response.

        Args:
            row: Every name that it may take, with its value.
            prompt: The first user turn.
            messages: Whether TRL's completions are lists of messages; None: as their annotation has it.
        """
        parameters = self.parameters
        if parameters.trl:
            given = _trl_arguments(row, prompt, parameters.messages if messages is None else messages)
        else:
            given = dict(row)
        if not parameters.everything:
            known = (*parameters.required, *parameters.optional)
            given = {name: value for name, value in given.items() if name in known}
        value = self.function(**given)
        if inspect.isawaitable(value):
            value = asyncio.run(_wait_for(value))
        return _only_one(value) if parameters.trl else value


@dataclass(frozen=True)
class Opinion:
    """What one function thinks of a response.

    Args:
        value: The reward; a correct answer's is 1 where the function only says that it is correct.
        correct: Whether the answer is correct, if the function says so.
        reason: Of a verdict.
        feedback: Of a verdict.
    """

    value: float
    correct: bool | None = None
    reason: Reason | None = None
    feedback: str = ""


def make_description(names: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Import the functions, and return what says of each what it takes, or of the first bad one why."""
    try:
        functions = load(names)
    except RewardLoadError as error:
        said: dict[str, Any] = {"error": str(error)}
    else:
        said = {"functions": [asdict(function.parameters) for function in functions]}
    return lambda: said


def make_judge(
    names: tuple[str, ...], weights: tuple[float, ...], correct_at: float, messages: bool | None
) -> Callable[[Mapping[str, Any], str], dict[str, Any]]:
    """Import the functions, and return what judges a row and its first user turn, see `judge`."""
    return partial(judge, load(names), weights, correct_at, messages)


def judge(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    correct_at: float,
    messages: bool | None,
    row: Mapping[str, Any],
    prompt: str,
) -> dict[str, Any]:
    """Judge a response by all functions; the fields of a `Verdict`."""
    opinions: list[tuple[float, Opinion]] = []
    for function, weight in zip(functions, weights, strict=True):
        try:
            opinion = read(function.call(row, prompt, messages))
        except (Exception, SystemExit) as error:
            hint = _hint(error, function, messages)
            return _verdict(Verdict(False, Reason.ERROR, feedback=f"{function.name}: {describe(error)}{hint}"))
        if opinion is not None:
            opinions.append((weight, opinion))
    if not opinions:
        text = f"{' and '.join(function.name for function in functions)} returned None: there is no reward"
        return _verdict(Verdict(False, Reason.ERROR, feedback=text))
    return _verdict(combine(opinions, correct_at))


def combine(opinions: Sequence[tuple[float, Opinion]], correct_at: float) -> Verdict:
    """Add up weighted opinions; where none says whether the answer is correct, the sum does."""
    score = math.fsum(weight * opinion.value for weight, opinion in opinions)
    said = [opinion for _, opinion in opinions if opinion.correct is not None]
    feedback = "\n".join(opinion.feedback for opinion in said if opinion.feedback)
    untrusted = next((one.reason for one in said if one.reason in (Reason.TIMEOUT, Reason.ERROR)), None)
    if untrusted is not None:
        return Verdict(False, untrusted, feedback=feedback)
    correct = all(opinion.correct for opinion in said) if said else score >= correct_at
    reason = Reason.EQUAL if correct else Reason.DIFFERENT
    reason = next((one.reason for one in said if one.reason and one.correct == correct), reason)
    return Verdict(correct, reason, score, feedback)


def read(value: Any) -> Opinion | None:
    """Read what a function returned; None: it has no opinion.

    Raises:
        TypeError: It is neither a number nor a bool, a verdict or None.
        ValueError: It is not finite.
    """
    if value is None:
        return None
    if isinstance(value, Verdict):
        value_of = value.score if value.score is not None else float(value.correct)
        return Opinion(_finite(value_of), bool(value.correct), Reason(value.reason), str(value.feedback))
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, bool):
        return Opinion(float(value), value)
    if isinstance(value, int | float):
        return Opinion(_finite(value))
    raise TypeError(f"returned a {type(value).__name__}; return a number, a bool, a r3env.core.Verdict or None")


def describe(error: BaseException) -> str:
    """Say in one line what was raised, and where in the user's code."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR].rstrip(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


@lru_cache
def load(names: tuple[str, ...]) -> tuple[RewardFunction, ...]:
    """Import reward functions by their names.

    Args:
        names: Each `module:function` or `/path/to/file.py:function`.

    Raises:
        RewardLoadError: One cannot be used.
    """
    return tuple(_load(name) for name in names)


def _load(name: str) -> RewardFunction:
    place, _, attributes = name.rpartition(":")
    module = _module(name, place)
    try:
        function = reduce(getattr, attributes.split("."), module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise RewardLoadError(
            f"{name}: {place} has no {attributes}; the nearest is {nearest(attributes, known)}"
        ) from None
    if not callable(function) or isinstance(function, type):
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise RewardLoadError(f"{name}: is {kind}, not a function; fix: name a function, or a callable object")
    return RewardFunction(name, function, _parameters(name, function))


def _module(name: str, place: str) -> ModuleType:
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise RewardLoadError(f"{name}: there is no such file; fix: start from the folder that it is named from")
    try:
        return _from_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise RewardLoadError(f"{name}: there is no module {error.name}; fix: {_START_FIX}") from None
        raise RewardLoadError(f"{name}: importing it fails: {describe(error)}") from None
    except (Exception, SystemExit) as error:
        raise RewardLoadError(f"{name}: importing it fails: {describe(error)}") from None


def _from_file(path: Path) -> ModuleType:
    """Import a file as a script finds its neighbors: its folder comes first."""
    sys.path.insert(0, str(path.parent))
    name = f"reward_{zlib.crc32(bytes(path))}_{path.stem}"  # a file may be called like any module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _parameters(name: str, function: Callable[..., Any]) -> Parameters:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RewardLoadError(f"{name}: does not say what it takes; fix: wrap it in a function") from None
    kinds = inspect.Parameter
    if any(one.kind is kinds.POSITIONAL_ONLY for one in parameters.values()):
        raise RewardLoadError(f"{name}: takes arguments by position only; fix: leave out the `/`")
    named = [one for one in parameters.values() if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    everything = any(one.kind is kinds.VAR_KEYWORD for one in parameters.values())
    trl = "completions" in parameters
    if not trl and "response" not in parameters and not everything:
        raise RewardLoadError(f"{name}: takes neither `response` nor TRL's `completions`; fix: name an argument so")
    return Parameters(
        required=tuple(one.name for one in named if one.default is kinds.empty),
        optional=tuple(one.name for one in named if one.default is not kinds.empty),
        everything=everything,
        trl=trl,
        messages=trl and "dict" in str(parameters["completions"].annotation),
    )


def _trl_arguments(row: Mapping[str, Any], prompt: str, messages: bool) -> dict[str, Any]:
    """What TRL would give for a batch of one."""
    given: dict[str, Any] = {name: [value] for name, value in row.items() if name != "response"}
    response = row["response"]
    if messages:
        given["prompts"] = [[{"role": "user", "content": prompt}]]
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


def _is_ours(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen") or Path(file).parent.name == "importlib"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "reason": str(verdict.reason), "feedback": verdict.feedback[:LONGEST_FEEDBACK]}
