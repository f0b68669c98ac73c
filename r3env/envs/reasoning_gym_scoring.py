"""The scorers of reasoning-gym, and which answers may reach scorers that run an answer as code.

Nine of the tasks give the answer to `eval` or to SymPy's `parse_expr`, which calls `eval`. In front of them stands
a list of what may be written; anything else is incorrect and is not looked at further. No process fences code in
as well as not running it.
"""

import pickle
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

Scorer = Callable[[Mapping[str, Any], str], float]

# parse_expr: numbers, operators and parentheses.
_ARITHMETIC = frozenset({"countdown", "puzzle24"})
# parse_expr: those, and symbols and functions.
_ALGEBRA = frozenset({"simple_integration", "intermediate_integration", "polynomial_multiplication"})
# eval of a list; but what they ask for is plain text.
_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
EVALUATING = _ARITHMETIC | _ALGEBRA | _LISTS

_LONGEST_ANSWER = 2000
_FUNCTIONS = frozenset(
    "Abs acos acosh acot acoth acsc asec asin asinh atan atanh cbrt cos cosh cot coth csc csch erf erfi exp ln log "
    "sec sech sin sinh sqrt tan tanh".split()
)
_CONSTANTS = frozenset({"pi"})
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])"
_TOKEN = re.compile(rf"\s+|{_NUMBER}|[-+*/^%!(),]|(?P<name>[A-Za-z][A-Za-z0-9_]*)(?P<call>\s*\()?", re.ASCII)
# Neither calls nor attributes can be written with these.
_PLAIN = re.compile(r"[A-Z0-9_\s-]+", re.ASCII)
_LIST = re.compile(r"""\[(?:[-\[\],\s\d]|'[^'"\\\n]*'|"[^'"\\\n]*")*\]""", re.ASCII)


def may_be_scored(task: str, entry: Mapping[str, Any], answer: str) -> bool:
    """Return whether the scorer may have this answer.

    Args:
        task: Name of the task.
        entry: What the library generated; in the task `composite` it says which task the problem is of.
        answer: What the policy wrote.
    """
    task = _source(task, entry)
    if task not in EVALUATING:
        return True
    reference = str(entry["answer"])
    if len(answer) > max(_LONGEST_ANSWER, 4 * len(reference)):
        return False
    if task in _LISTS:
        return bool(_PLAIN.fullmatch(answer) or _LIST.fullmatch(answer))
    # A reference answer may hold what is not listed here, such as an `Integral` that SymPy left as it is.
    known = frozenset(re.findall(r"[A-Za-z]\w*", reference)) if task in _ALGEBRA else frozenset()
    return _is_expression(answer, known, names=task in _ALGEBRA)


def runs_answers(task: str, entry: Mapping[str, Any]) -> bool:
    """Return whether the task's scorer runs an answer as code."""
    return _source(task, entry) in EVALUATING


def _source(task: str, entry: Mapping[str, Any]) -> str:
    """Return the task that the problem is of, which in `composite` is another one."""
    return str(entry["metadata"]["source_dataset"]) if task == "composite" else task


def _is_expression(text: str, known: frozenset[str], *, names: bool) -> bool:
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return False
        name = token["name"]
        if name is not None and not (names and _is_known(name, known, called=token["call"] is not None)):
            return False
        position = token.end()
    return True


def _is_known(name: str, known: frozenset[str], *, called: bool) -> bool:
    if len(name) == 1 or name in _CONSTANTS:
        return not called
    return name in known or name in _FUNCTIONS


@lru_cache(maxsize=64)
def make_scorer(name: str, config: bytes) -> Scorer:
    """Make the library's own scorer of a task: from its generated entry and the answer to a score.

    Args:
        name: Of the task.
        config: The pickled configuration of its data set.
    """
    # Imported here: the environments must not need the library, and its seconds do not count as an answer's.
    from reasoning_gym.factory import DATASETS

    dataset_class, _ = DATASETS[name]
    return partial(_score, dataset_class(pickle.loads(config)))


def _score(dataset: Any, entry: Mapping[str, Any], answer: str) -> float:
    value = float(dataset.score_answer(answer, entry))
    return min(max(value, 0.0), 1.0) if value == value else 0.0
