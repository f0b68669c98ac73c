"""Tools that are Python functions of the user, called in child processes that can be killed.

A function may hang, exit, raise or fill memory. Each call has a fork of its own, so nothing that it changes stays.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError
from r3env.child_processes.subprocess_scorer import ScorerRaisedError, SubprocessScorer
from r3env.grading.grader import pool_size
from r3env.registry import OptionError
from r3env.tools.calls import ToolCall
from r3env.tools.results import Schema, ToolResult, failure, name_of, timed_out

_CHILD = "r3env.tools.child"
_DESCRIPTION_LIMIT_S = 60.0
_LONGEST_PROBLEM = 300


class FunctionTools:
    """Python functions as tools, see `ToolSource`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Import the functions once, in a child process, to read their names, descriptions and arguments.

        Args:
            names: Each `module:function` or `/path/to/file.py:function`.

        Raises:
            OptionError: One cannot be imported, or does not say what it takes.
        """
        self.schemas = _describe(names, tuple(sys.path)) if names else []
        self._functions = dict(zip(map(name_of, self.schemas), names, strict=True))
        self._parameters = {name_of(schema): schema["function"]["parameters"] for schema in self.schemas}

    def call(self, call: ToolCall, *, timeout_s: float, most: int) -> ToolResult:
        """Call a function, see `ToolSource.call`."""
        if problem := argument_problem(self._parameters[call.name], call.arguments):
            return failure(f"{call.name}: {problem}").shortened(most)
        try:
            said = _shared_caller(tuple(sys.path)).ask(
                f"{_CHILD}:make_caller",
                (self._functions[call.name],),
                dict(call.arguments),
                most,
                timeout_s=timeout_s,
                once=True,
            )
        except ProcessTimeoutError:
            return timed_out(call.name, timeout_s)
        except (ProcessDiedError, ProcessTamperedError):
            return failure(f"{call.name} ended its process")
        except ScorerRaisedError as error:
            return failure(f"{call.name}: {error}").shortened(most)
        return failure(str(said["text"])) if said["failed"] else ToolResult(str(said["text"]))

    def close(self) -> None:
        """Leave the processes to the other environments of this one."""


def argument_problem(parameters: Schema, arguments: Mapping[str, Any]) -> str:
    """Return the fault in the arguments of a call, in one line for the model; empty if there is none."""
    properties = parameters.get("properties", {})
    takes = f"it takes {', '.join(properties)}" if properties else "it takes none"
    for name in arguments:
        if name not in properties:
            return f"there is no argument {name!r}; {takes}"
    for name in parameters.get("required", ()):
        if name not in arguments:
            return f"the argument {name!r} is missing; {takes}"
    for name, value in arguments.items():
        validator = Draft202012Validator(_with_null(properties[name]))
        error = next(validator.iter_errors(value), None)
        if error is not None:
            return f"the argument {name!r}: {error.message[:_LONGEST_PROBLEM]}"
    return ""


def _with_null(schema: Any) -> Any:
    """Return the schema with `nullable`, which transformers writes, in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_null(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [inner, {"type": "null"}]} if schema.get("nullable") is True else inner


@functools.lru_cache(maxsize=2)
def _shared_caller(path: tuple[str, ...]) -> SubprocessScorer:
    """Return the processes of this one that call tools, as many as it may have graders (R3ENV_GRADERS).

    Children learn when they start where modules are.
    """
    return SubprocessScorer(size=pool_size())


@functools.lru_cache
def _describe(names: tuple[str, ...], path: tuple[str, ...]) -> list[Schema]:
    """Return what each function is called, does and takes; raises OptionError if one cannot be used."""
    try:
        said = _shared_caller(path).ask(f"{_CHILD}:make_description", (names,), timeout_s=_DESCRIPTION_LIMIT_S)
    except ProcessTimeoutError:
        raise OptionError("tools", f"{' and '.join(names)}: importing takes too long; fix: do less on import") from None
    except (ProcessDiedError, ProcessTamperedError, ScorerRaisedError) as error:
        raise OptionError("tools", f"{' and '.join(names)}: importing ends the process ({error})") from error
    if "error" in said:
        raise OptionError("tools", said["error"])
    return list(said["schemas"])
