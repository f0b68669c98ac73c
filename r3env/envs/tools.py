"""`r3env/Tools-v0`: problems that the policy may call tools for, over several turns, before it answers."""

import json
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnasium.error import ResetNeeded

from r3env.core import Queries, Query, Reason, Verdict, VerifiableEnv
from r3env.envs.function import FunctionEnv
from r3env.envs.math import MathEnv
from r3env.named_functions import check_names
from r3env.registry import OptionError
from r3env.tools.calls import ToolCall, find_calls
from r3env.tools.functions import FunctionTools
from r3env.tools.mcp_servers import McpTools
from r3env.tools.results import Schema, ToolResult, ToolSource, failure, name_of

_FORM = """You can call functions before you answer. There is one a line, with what it does and takes:
{functions}
To call one, write this and nothing else, and wait for its result:
<tool_call>
{call}
</tool_call>"""


def describe(schemas: Sequence[Schema]) -> str:
    """Return the text that stands before the problem: the functions, and how to call them.

    Args:
        schemas: of the functions, as `tools=` of a chat template has them.
    """
    functions = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    names = schemas[0]["function"].get("parameters", {}).get("properties", {})
    arguments = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: …" for name in names)
    call = f'{{"name": {json.dumps(name_of(schemas[0]))}, "arguments": {{{arguments}}}}}'
    return _FORM.format(functions=functions, call=call)


def result_turn(results: Sequence[ToolResult]) -> dict[str, str]:
    """Return the user turn that has the results of a response's calls, in their order."""
    texts = (f"<tool_response>\n{result.text}\n</tool_response>" for result in results)
    return {"role": "user", "content": "\n".join(texts)}


# Results of tools come back from other processes as JSON, of which a character takes up to 12 bytes of 256 KB.
MOST_CHARACTERS = 20_000
_LONGEST_NAME = 100  # of a tool that does not exist
_LONGEST_ERROR = 300
CALLS, FAILED_CALLS = "tool_calls", "failed_tool_calls"


class ToolEnv(VerifiableEnv):
    """Problems of a data set, and tools: Python functions, and those of MCP servers.

    A response that calls tools is met with their results; the first one that calls none is the answer, and ends the
    episode. A tool that fails, hangs or does not exist is a result as well.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        tools: str | Sequence[str] | None = None,
        mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
        reward: str | Sequence[str] | None = None,
        max_turns: int = 8,
        max_calls: int = 16,
        max_calls_per_turn: int = 4,
        call_timeout_s: float = 10.0,
        max_output_characters: int = 4000,
        show_tools: str = "template",
        **arguments: Any,
    ) -> None:
        """Make the environment; functions are imported in a child process, and servers are started or connected to.

        Args:
            data: As in `r3env/Math-v0`.
            tools: `module:function` or `path/to/file.py:function`, or several of them. The function's docstring and
                type hints say what it does and takes. It is called with what the policy writes, by name, and returns
                text or anything that JSON holds.
            mcp_servers: By a name of yours, how to start a server: `command`, and if wanted `args`, `env`, `cwd`; or
                where one runs: `url`, and if wanted `headers`. Of both `tools`, the names of those that are offered.
            reward: As in `r3env/Function-v0`, judges the answer; None: the grader of `r3env/Math-v0` does. A function
                with arguments `tool_calls=0` and `failed_tool_calls=0` gets how many calls the episode had.
            max_turns: Responses in an episode, calls and answer together. Calls in the last one are not made.
            max_calls: Calls in an episode; a further one fails.
            max_calls_per_turn: Calls in a response; a further one fails.
            call_timeout_s: Seconds that a tool may take.
            max_output_characters: Longest result; of a longer one the beginning.
            show_tools: Who shows the tools and their results: `template`, the chat template; `prompt`, the first user
                turn and further user turns, for a template that has no tools.
            arguments: Further arguments of `r3env/Math-v0`, or with `reward` of `r3env/Function-v0`.

        Raises:
            ValueError: A number is not in its range.
            OptionError: A tool cannot be used, or two have the same name.
        """
        task = MathEnv(data, **arguments) if reward is None else FunctionEnv(data, reward=reward, **arguments)
        guidance = task.reflection_guidance
        super().__init__(instruction=task.instruction, reflection_guidance=guidance, max_turns=max_turns)
        _check_count("max_calls", max_calls)
        _check_count("max_calls_per_turn", max_calls_per_turn)
        _check_count("max_output_characters", max_output_characters, MOST_CHARACTERS)
        if not _is_number(call_timeout_s) or not 0 < call_timeout_s < math.inf:
            raise OptionError("call_timeout_s", f"must be a positive number of seconds, it is {call_timeout_s!r}")
        if show_tools not in ("template", "prompt"):
            raise OptionError("show_tools", f"must be template or prompt, it is {show_tools!r}")
        self.task, self.max_calls, self.max_calls_per_turn = task, max_calls, max_calls_per_turn
        self.call_timeout_s, self.max_output_characters = float(call_timeout_s), max_output_characters
        sources: list[ToolSource] = []
        self._ended = weakref.finalize(self, _close, sources)
        self._sources = _open(tools, mcp_servers, sources)
        schemas = [schema for source in sources for schema in source.schemas]
        self.tools = schemas if show_tools == "template" else []
        self._described = describe(schemas) if show_tools == "prompt" else ""
        self._calls = self._failed = 0

    def load_queries(self) -> Queries:
        """Return the problems of `data`, shared with every environment of this process that wants the same ones."""
        return self.task.queries

    def same_answer(self, first: str, second: str) -> bool | None:
        """Return whether the grader takes two answers for the same."""
        return self.task.same_answer(first, second)

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge an answer, as the grader or the reward function does."""
        counts = {CALLS: self._calls, FAILED_CALLS: self._failed}
        return self.task.verify(replace(query, info={**query.info, **counts}), response)

    def prompt(self, query: Query) -> str:
        """Return the first user turn: the tools, if they are shown there, the problem, the instruction."""
        problem = self.task.prompt(query)
        return f"{self._described}\n\n{problem}" if self._described else problem

    def reference_response(self, query: Query) -> str:
        """Return a response that gives the reference answer, without calling anything."""
        return self.task.reference_response(query)

    def answer_form(self, query: Query) -> str:
        """Return what the grader or the reward function looks for, once no tool is called."""
        return self.task.answer_form(query)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, as `VerifiableEnv.reset` does; the info has `tools` for the chat template."""
        observation, info = super().reset(seed=seed, options=options)
        self._calls = self._failed = 0
        return observation, {**info, "tools": self.tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make the calls of a response, or judge it as the answer.

        Returns:
            As `VerifiableEnv.step` does. After calls the info has `messages`, the turns with their results, of which
            the observation has the text; with every response `counts`, its calls and those that failed.
        """
        if self._current is None or self._turns_left == 0:
            raise ResetNeeded("no episode is running: call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"a response must be text, it is of type {type(action).__name__}")
        query, calls = self._current, find_calls(action)
        self._turns_left = self._turns_left - 1 if calls else 0
        if not calls or not self._turns_left:
            verdict = self.verify(query, action) if not calls else Verdict(False, Reason.NO_ANSWER)
            info = self._step_info(query, verdict) | _counted(len(calls), len(calls), [])
            return "", self.reward(query, verdict), True, False, info
        problems = [self._problem(call, number) for number, call in enumerate(calls)]
        results = [self._result(call, problem) for call, problem in zip(calls, problems, strict=True)]
        failed = sum(result.failed for result in results)
        self._failed += failed
        messages = [
            {"role": "tool", "name": call.name, "content": result.text}
            for call, result in zip(calls, results, strict=True)
        ]
        if self._described:
            messages = [result_turn(results)]
        info = self._step_info(query, Verdict(False, Reason.NO_ANSWER))
        made = [
            (call.name, result.text if result.failed else "")
            for call, result, problem in zip(calls, results, problems, strict=True)
            if not problem
        ]
        info |= {"messages": messages} | _counted(len(calls), failed, made)
        return "\n".join(result.text for result in results), 0.0, False, False, info

    def close(self) -> None:
        """End the servers that no other environment of this process uses."""
        self._ended()

    def reward(self, query: Query, verdict: Verdict) -> float:
        """Return the reward as the task defines it."""
        return self.task.reward(query, verdict)

    def _problem(self, call: ToolCall, number: int) -> str:
        """Return why a call, the so-manieth of its response from 0, is not made; empty if it is."""
        self._calls += 1
        if call.problem:
            return call.problem
        if number >= self.max_calls_per_turn:
            return f"one response may have {self.max_calls_per_turn} calls; this one was not made"
        if self._calls > self.max_calls:
            return f"all {self.max_calls} calls are used up; answer now"
        if call.name not in self._sources:
            return f"there is no tool {call.name[:_LONGEST_NAME]!r}; there are {', '.join(self._sources)}"
        return ""

    def _result(self, call: ToolCall, problem: str) -> ToolResult:
        """Make a call, unless it has a problem; whatever goes wrong is the result."""
        most = self.max_output_characters
        if problem:
            return failure(problem).shortened(most)
        return self._sources[call.name].call(call, timeout_s=self.call_timeout_s, most=most)


def _counted(calls: int, failed: int, made: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The infos of a response: `counts` of its calls, and `calls` with the name and error of those that were made."""
    errors = [(name, error and (error.removeprefix("Error: ")[:_LONGEST_ERROR] or "failed")) for name, error in made]
    return {"counts": {CALLS: calls, FAILED_CALLS: failed}, "calls": tuple(errors)}


def _open(
    tools: str | Sequence[str] | None, servers: Mapping[str, Mapping[str, Any]] | None, sources: list[ToolSource]
) -> dict[str, ToolSource]:
    """Open the sources, into a list that is closed whatever happens; returns them by the names of their tools."""
    by_name: dict[str, ToolSource] = {}
    try:
        if tools or not servers:
            try:
                names = check_names(tools, "environment.options.tools=[my_module:my_function]")
            except ValueError as error:
                raise OptionError("tools", str(error)) from None
            _add(FunctionTools(names), "tools", sources, by_name)
        if servers is not None and not isinstance(servers, Mapping):
            raise OptionError(
                "mcp_servers", "must map names of yours to how each server is started, or to where it runs"
            )
        for name, described in (servers or {}).items():
            _add(McpTools(name, described), f"mcp_servers.{name}", sources, by_name)
    except BaseException:
        _close(sources)
        raise
    return by_name


def _add(source: ToolSource, option: str, sources: list[ToolSource], by_name: dict[str, ToolSource]) -> None:
    sources.append(source)
    for name in map(name_of, source.schemas):
        if name in by_name:
            fix = "fix: rename one, or name those of a server that you want: mcp_servers.NAME.tools"
            raise OptionError(option, f"two tools are called {name!r}; {fix}")
        by_name[name] = source


def _close(sources: list[ToolSource]) -> None:
    while sources:
        sources.pop().close()


def _check_count(option: str, value: Any, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limit = "" if most == math.inf else f" and at most {most:.0f}"
        raise OptionError(option, f"must be a whole number of at least 1{limit}, it is {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
