"""Queries, their other forms, and queries by uid, however they are stored."""

import abc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# An instruction, `within \boxed{}`, not a box that a problem draws, `\boxed{\phantom{0}} + 3`.
_ASKS_FOR_BOX = re.compile(
    r"\b(?:within|in|inside|using|into|with|by|as|form|format)\b[\s:]*(?:(?:a|an|the|latex)\s+)*[^\w\s\\]{0,4}"
    r"(?:\\{1,2}(?:boxed|fbox)\b|boxed\s*\{)|\\{1,2}boxed\s*\{\s*+(?:\.{3}|\\[lc]?dots)?\s*\}",
    re.IGNORECASE,
)
VARIANTS = "variants"  # the name in `Query.info`


@dataclass(frozen=True, slots=True)
class Query:
    """One problem.

    Args:
        uid: Stable name.
        problem: Its text.
        answer: The reference answer.
        level: How hard it is, if known.
        info: Further columns of the data, by the names that `columns` gives them: hints, solutions, variants.
        turns: Turns before the problem, each with `role` (system, user or assistant) and `content`.
    """

    uid: str
    problem: str
    answer: str
    level: str = ""
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)
    turns: Sequence[Mapping[str, str]] = field(default=(), hash=False)

    def conversation(self, prompt: str) -> tuple[Mapping[str, str], ...]:
        """Return the turns up to where the policy begins to write; `prompt` is the text of the last one."""
        return (*self.turns, {"role": "user", "content": prompt})


def variants_of(query: Query) -> dict[str, Query]:
    """Return other forms of a query by name, as in `info["variants"]`: `{name: {"problem": …, "answer": …}}`.

    They keep the query's uid, and its answer where they name none. The column may be an object or JSON text.

    Raises:
        ValueError: it is neither, or a variant has no problem.
    """
    given = query.info.get(VARIANTS) or {}
    try:
        forms = json.loads(given) if isinstance(given, str) else given
        # A column of a table has every name in every row.
        return {name: _variant(query, form) for name, form in forms.items() if form}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{VARIANTS} of query {query.uid!r} is not an object of objects with a `problem` ({error!r})"
        ) from error


def _variant(query: Query, form: Mapping[str, Any]) -> Query:
    """Return a form of a query; raises ValueError if it has no problem."""
    problem, answer = form["problem"], form.get("answer")
    if problem in (None, ""):
        raise ValueError("an empty problem")
    return replace(query, problem=str(problem), answer=query.answer if answer in (None, "") else str(answer))


def holds_instruction(query: Query, instruction: str) -> bool:
    r"""Return whether the query's own system or user turns hold the instruction, or one for `\boxed` as it is."""
    asked = [turn["content"] for turn in query.turns if turn["role"] != "assistant"]
    text = "\n".join([*asked, query.problem])
    return instruction.strip() in text or ("\\boxed" in instruction and _ASKS_FOR_BOX.search(text) is not None)


class Queries(Mapping[str, Query], abc.ABC):
    """Queries by uid, in an order; each one may be read or generated when it is needed."""

    @abc.abstractmethod
    def uid_at(self, index: int) -> str:
        """Return the uid of the query at this place of the order."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @abc.abstractmethod
    def __getitem__(self, uid: str) -> Query:
        """Return the query of this uid; KeyError if there is none."""

    def __iter__(self) -> Iterator[str]:
        return (self.uid_at(index) for index in range(len(self)))


class QueryList(Queries):
    """Queries that are all in memory."""

    def __init__(self, queries: Sequence[Query]) -> None:
        """Index the queries.

        Raises:
            ValueError: Two have the same uid.
        """
        self._by_uid = {query.uid: query for query in queries}
        self._uids = list(self._by_uid)
        if len(self._uids) < len(queries):
            raise ValueError("two queries with the same uid")

    def uid_at(self, index: int) -> str:
        """Return the uid of the query at this place of the order."""
        return self._uids[index]

    def __len__(self) -> int:
        return len(self._uids)

    def __getitem__(self, uid: str) -> Query:
        return self._by_uid[uid]
