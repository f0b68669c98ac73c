"""A task of code: write a Python function; it runs on hidden inputs in a process with limits."""

import json
import re
from dataclasses import dataclass
from typing import Any

import gymnasium

from examples.sandbox import Ending, Limits, run_calls
from r3env.child_processes.process import ProcessStartError
from r3env.core import Query, Reason, Verdict, VerifiableEnv

_CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Task:
    """A function to write, a solution of it in Python, and the inputs that an answer is tried on."""

    name: str
    wanted: str
    solution: str
    inputs: tuple[tuple[Any, ...], ...]

    def query(self) -> Query:
        """Return the task as the environment holds it; the reference answer is the inputs with their results."""
        function = eval(self.solution)  # written below, by nobody else
        cases = [[list(arguments), function(*arguments)] for arguments in self.inputs]
        problem = f"Write a Python function `{self.name}` that {self.wanted}."
        return Query(self.name, problem, json.dumps({"function": self.name, "cases": cases}))


TRAIN = (
    Task("double", "returns twice its argument", "lambda n: 2 * n", ((0,), (3,), (-5,), (10**20,))),
    Task("largest", "returns the largest number of a list", "max", (([1, 5, 2],), ([-3, -1],), ([7],))),
    Task("reverse", "returns a text backwards", "lambda text: text[::-1]", (("abc",), ("",), ("été",))),
    Task("is_even", "tells whether a whole number is even", "lambda n: n % 2 == 0", ((0,), (7,), (-4,), (10**20 + 1,))),
    Task("absolute", "returns the absolute value of a number", "abs", ((3,), (-3,), (0,), (-2.5,))),
    Task("total", "returns the sum of a list of numbers", "sum", (([1, 2, 3],), ([],), ([-1, 1],))),
)
HELD_OUT = (
    Task("smallest", "returns the smallest number of a list", "min", (([1, 5, 2],), ([-3, -1],), ([7],))),
    Task("triple", "returns three times its argument", "lambda n: 3 * n", ((0,), (3,), (-5,))),
)
SPLITS = {"train": TRAIN, "heldout": HELD_OUT}


class WriteFunction(VerifiableEnv):
    """Functions to write in Python; correct if every hidden input gives the expected result.

    Args:
        data: `train` or `heldout`.
        cpu_s: seconds of CPU time for all inputs together.
    """

    def __init__(
        self,
        data: str = "train",
        *,
        cpu_s: int = 2,
        instruction: str = "Put the code in one block that begins with ```python.",
        **arguments: Any,
    ) -> None:
        super().__init__(instruction=instruction, **arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.tasks = SPLITS[data]
        self.limits = Limits(cpu_s=cpu_s)

    def load_queries(self) -> list[Query]:
        """Return the tasks of the split."""
        return [task.query() for task in self.tasks]

    def verify(self, query: Query, response: str) -> Verdict:
        """Run the last code block on the hidden inputs.

        Code that runs on for ever is a wrong answer, not a timeout: a timeout would take it out of its group,
        and the policy would never learn that it is wrong.
        """
        code = last_code_block(response)
        if code is None:
            return Verdict(False, Reason.NO_ANSWER)
        reference = json.loads(query.answer)
        arguments, expected = zip(*reference["cases"], strict=True)
        try:
            outcome = run_calls(code, reference["function"], arguments, self.limits)
        except ProcessStartError:
            return Verdict(False, Reason.ERROR)
        correct = outcome.ending is Ending.RETURNED and _same(outcome.results, expected)
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)

    def reference_response(self, query: Query) -> str:
        """Return the task's own solution in a code block."""
        solution = next(task.solution for task in self.tasks if task.name == query.uid)
        return f"```python\n{query.uid} = {solution}\n```"


def last_code_block(response: str) -> str | None:
    """Return the content of the last complete code block; None without one."""
    blocks = _CODE_BLOCK.findall(response)
    return blocks[-1] if blocks else None


def _same(results: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """As JSON, because in Python 1 == True == 1.0."""
    return json.dumps(results) == json.dumps(expected)


gymnasium.register("WriteFunction-v0", WriteFunction)
