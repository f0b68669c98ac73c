"""One problem, and a set of problems that can be looked up without holding them all."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """One problem: a stable `uid`, its text, the reference answer and, if known, how hard it is."""

    uid: str
    problem: str
    answer: str
    level: str = ""


class Queries(Mapping[str, Query], abc.ABC):
    """Queries by uid, in an order; may read or generate each one when it is asked for."""

    @abc.abstractmethod
    def uid_at(self, index: int) -> str:
        """The uid of the query at this place of the order."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def __getitem__(self, uid: str) -> Query:
        """The query of this uid; KeyError if there is none."""

    def __iter__(self) -> Iterator[str]:
        return (self.uid_at(index) for index in range(len(self)))


class QueryList(Queries):
    """Queries that are all in memory."""

    def __init__(self, queries: Sequence[Query]) -> None:
        """Indexes the queries.

        Raises:
            ValueError: Two have the same uid.
        """
        self._by_uid = {query.uid: query for query in queries}
        self._uids = list(self._by_uid)
        if len(self._uids) < len(queries):
            raise ValueError("two queries of the same uid")

    def uid_at(self, index: int) -> str:
        """The uid of the query at this place of the order."""
        return self._uids[index]

    def __len__(self) -> int:
        return len(self._uids)

    def __getitem__(self, uid: str) -> Query:
        return self._by_uid[uid]
