"""`r3env/Function-v0`: problems of a data set, whose answers a function of the user judges."""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError
from r3env.child_processes.subprocess_scorer import ScorerRaisedError, SubprocessScorer
from r3env.core import REFLECTION_STEPS, Queries, Query, Reason, Verdict, reason_of
from r3env.data.loading import Selection
from r3env.data.sources import MissingColumnError
from r3env.envs.function_calls import ARGUMENTS, TRL_ARGUMENTS
from r3env.envs.function_loading import Parameters
from r3env.envs.math import MathEnv
from r3env.grading.grader import pool_size
from r3env.named_functions import check_names
from r3env.registry import OptionError

_CHILD = "r3env.envs.function_calls"
_DESCRIPTION_LIMIT_S = 60.0
# Names, weights, `correct_at` and `messages`, see `FunctionEnv`.
MadeFrom = tuple[tuple[str, ...], tuple[float, ...], float, bool | None]
_Turns = Sequence[Mapping[str, str]]
Judge = Callable[[MadeFrom, Mapping[str, Any], str, _Turns, float], Mapping[str, Any]]
_OF_TRAINER = ("completion_ids", "trainer_state", "environments")


class FunctionEnv(MathEnv):
    """Problems of a data set, as `r3env/Math-v0` reads them, and a reward function.

    The function is imported and called in child processes that can be killed: it may hang, exit, raise or fill memory
    without harm to anything else. Each call has a fork of its own, so nothing that it changes stays. `judging_with` has
    it called elsewhere.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        reward: str | Sequence[str] | None = None,
        weights: Sequence[float] | None = None,
        correct_at: float | None = None,
        messages: bool | None = None,
        instruction: str = "",
        reflection_guidance: str | None = None,
        **arguments: Any,
    ) -> None:
        """Make the environment, and import the function once, in a child process.

        Args:
            data: As in `r3env/Math-v0`; here a row may lack an answer.
            reward: `module:function` or `path/to/file.py:function`, or several of them, whose rewards are added.
                A function is called with those of the arguments `problem`, `response`, `answer`, `uid`, `level` and
                the row's columns that it declares, by name; with `**kwargs` it gets all. It returns a number, a bool,
                a `r3env.core.Verdict`, or None where it has nothing to say. One that declares `completions` is called
                as TRL calls it, with lists of one element, and returns such a list.
            weights: Of several functions, each 1 if None.
            correct_at: Reward from which an answer is correct, if no function says so by a bool or a verdict; None: 1.
            messages: Whether TRL's completions are lists of messages or text; None: as their annotation has it, which
                is text where there is none.
            instruction: Text that follows the problem; empty for none.
            reflection_guidance: The user turn after an incorrect answer; None for steps to find the mistake, and the
                instruction again.
            arguments: Further arguments of `r3env/Math-v0`; `grading_timeout_s` is what one call may take.

        Raises:
            ValueError: A number is not in its range.
            OptionError: A function cannot be imported or called like this.
        """
        guidance = REFLECTION_STEPS + instruction if reflection_guidance is None else reflection_guidance
        if "answer" in arguments:
            raise OptionError(
                "answer",
                "the function reads the response; fix: leave it out, or set it in a part of a mixture that reads it",
            )
        super().__init__(data, instruction=instruction, reflection_guidance=guidance, **arguments)
        self.names, self._judge = _names(reward), _judge.get()  # waits: not at all, a context variable
        self.weights = _weights(weights, self.names)
        least = 1.0 if correct_at is None else correct_at
        if isinstance(least, bool) or not isinstance(least, int | float) or not math.isfinite(least):
            raise OptionError("correct_at", f"must be a number, it is {correct_at!r}")
        if not isinstance(messages, bool | None):
            raise OptionError("messages", f"must be true, false or null, it is {messages!r}")
        self.correct_at, self.messages, self.names_correct_at = float(least), messages, correct_at is not None
        self.parameters = _describe(self.names, tuple(sys.path))

    def load_queries(self) -> Queries:
        """Return the problems, with the columns that the functions take.

        Raises:
            OptionError: A function takes an argument that is no column.
        """
        try:
            return super().load_queries()
        except MissingColumnError as error:
            for name, parameters in zip(self.names, self.parameters, strict=True):
                if error.column in parameters.required and error.column not in self.columns:
                    raise OptionError("reward", self._missing(name, parameters, error)) from error
            raise

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge the response with the functions."""
        try:
            said = self._ask(query, response)
            reason, answer = reason_of(said["reason"]), said["answer"]
            return Verdict(bool(said["correct"]), reason, said["score"], said["feedback"], answer, said["rewards"])
        except ProcessTimeoutError as error:
            waited = f"; {error}" if str(error) else ""
            late = f"took longer than {self.grading_timeout_s:g} s (environment.grading_timeout_s){waited}"
            return Verdict(False, Reason.TIMEOUT, feedback=f"{' and '.join(self.names)} {late}")
        except ProcessDiedError:
            text = "the process died: os._exit, a signal or lack of memory ended it"
        except ProcessTamperedError:
            text = "the result is not a verdict"
        except ScorerRaisedError as error:
            text = str(error)
        return Verdict(False, Reason.ERROR, feedback=f"{' and '.join(self.names)}: {text}")

    def answer_form(self, query: Query) -> str:
        """Return that the functions decide it."""
        return f"what {' and '.join(self.names)} reads as an answer"

    def sum_decides(self, query: Query) -> bool:
        """Return whether several functions all return numbers for the reference answer: then their sum decides."""
        try:
            return len(self.names) > 1 and bool(self._ask(query, self.reference_response(query)).get("by_sum"))
        except (ProcessTimeoutError, ProcessDiedError, ProcessTamperedError, ScorerRaisedError):
            return False

    def _ask(self, query: Query, response: str) -> Mapping[str, Any]:
        """Return what the functions say; raises what `SubprocessScorer.ask` raises."""
        row = {**query.info, "problem": query.problem, "answer": query.answer, "uid": query.uid, "level": query.level}
        row["response"] = response
        made_from = self.names, self.weights, self.correct_at, self.messages
        turns = [dict(turn) for turn in query.turns]
        return self._judge(made_from, row, self.prompt(query), turns, self.grading_timeout_s)

    def _selection(self) -> Selection:
        columns, optional = dict(self.columns), dict[str, None]()
        for parameters in self.parameters:
            taken = {*ARGUMENTS, *(TRL_ARGUMENTS if parameters.trl else ())}
            columns.update({name: name for name in parameters.required if name not in taken | columns.keys()})
            optional.update(dict.fromkeys(name for name in parameters.optional if name not in taken))
        everything = any(parameters.everything for parameters in self.parameters)
        kept = None if everything else tuple(name for name in optional if name not in columns)
        return Selection(columns, self.limit, self.max_prompt_length, self._prompt_length, kept, whole_row=True)

    def _missing(self, name: str, parameters: Parameters, error: MissingColumnError) -> str:
        column = error.column
        if parameters.trl and column in _OF_TRAINER:
            return f"{name} takes {column!r}, which only TRL's trainer has; fix: give the argument a default"
        return (
            f"{name} takes {column!r}, which is neither one of {', '.join(ARGUMENTS)} nor a column of {self.data} "
            f"(row {error.row}); fix: add the column, give the argument a default, or say in columns what the data "
            f"call it: {{{column}: …}}"
        )


def judge_in_fork(
    made_from: MadeFrom, row: Mapping[str, Any], prompt: str, turns: _Turns, timeout_s: float
) -> Mapping[str, Any]:
    """Judge a response in a fork of a child process; raises what `SubprocessScorer.ask` raises."""
    return shared_judge().ask(f"{_CHILD}:make_judge", made_from, row, prompt, turns, timeout_s=timeout_s)


_judge: ContextVar[Judge] = ContextVar("judge", default=judge_in_fork)


@contextlib.contextmanager
def judging_with(judge: Judge) -> Iterator[None]:
    """Have environments that are made here judge by another callable, which takes what `judge_in_fork` does."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


def shared_judge() -> SubprocessScorer:
    """Return the processes of this one that call reward functions, as many as it may have graders (R3ENV_GRADERS)."""
    return _judge_of_path(tuple(sys.path))


@functools.lru_cache(maxsize=2)
def _judge_of_path(path: tuple[str, ...]) -> SubprocessScorer:
    """Children learn when they start where modules are; a notebook may say later where more of them are."""
    return SubprocessScorer(size=pool_size())


@functools.lru_cache
def _describe(names: tuple[str, ...], path: tuple[str, ...]) -> tuple[Parameters, ...]:
    """Return what each function takes.

    Args:
        names: Of the functions.
        path: Where modules are.

    Raises:
        OptionError: One cannot be used.
    """
    try:
        said = shared_judge().ask(f"{_CHILD}:make_description", (names,), timeout_s=_DESCRIPTION_LIMIT_S)
    except ProcessTimeoutError:
        raise OptionError(
            "reward", f"{' and '.join(names)}: importing takes too long; fix: do less on import"
        ) from None
    except (ProcessDiedError, ProcessTamperedError, ScorerRaisedError) as error:
        raise OptionError("reward", f"{' and '.join(names)}: importing ends the process ({error})") from error
    if "error" in said:
        raise OptionError("reward", said["error"])
    return tuple(_parameters(**function) for function in said["functions"])


def _parameters(required: Sequence[str], optional: Sequence[str], **flags: bool) -> Parameters:
    return Parameters(tuple(required), tuple(optional), **flags)


def _names(reward: str | Sequence[str] | None) -> tuple[str, ...]:
    try:
        return check_names(reward, "environment.options.reward=my_module:my_function")
    except ValueError as error:
        raise OptionError("reward", str(error)) from None


def _weights(weights: Sequence[float] | None, names: Sequence[str]) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * len(names)
    numbers = isinstance(weights, Sequence) and all(isinstance(one, int | float) for one in weights)
    if not numbers or len(weights) != len(names) or not all(map(math.isfinite, weights)):
        raise OptionError("weights", f"must be one number for each of the {len(names)} functions, it is {weights!r}")
    return tuple(float(one) for one in weights)
