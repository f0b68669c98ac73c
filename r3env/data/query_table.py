"""Queries on disk; memory holds only the place of each, some 40 bytes per query."""

import marshal
import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from typing import Self

from r3env.core import Queries, Query

_EMPTY = -1
_FIRST_SLOTS = 1 << 10
_HASH_MASK = (1 << 64) - 1


def _plain(turns: Iterable[Mapping[str, str]]) -> tuple[dict[str, str], ...]:
    return tuple(dict(turn) for turn in turns)


class QueryTable(Queries):
    """An append-only set of queries in a temporary file (in TMPDIR), found by uid through a hash table.

    Made by one thread and then read by any number, also in forked processes. The file has no name and goes with the
    table.
    """

    def __init__(self) -> None:
        """Make an empty table.

        Raises:
            OSError: There is no room for a temporary file.
        """
        self._file = tempfile.TemporaryFile(prefix="r3env-queries-")
        self._ends = array("Q", [0])
        self._hashes = array("Q")
        self._rows = array("Q")
        # Open addressing: the slot of a uid holds its index, or the next slot that is free does.
        self._slots = array("q", [_EMPTY]) * _FIRST_SLOTS

    @classmethod
    def from_queries(cls, queries: Iterable[Query]) -> Self:
        """Return a table of these queries."""
        table = cls()
        for number, query in enumerate(queries, start=1):
            table.add(query, number)
        return table

    def add(self, query: Query, row: int) -> tuple[Query, int] | None:
        """Append a query from this row of its data set.

        Returns:
            None, or, if there is a query of this uid already, that query and its row; nothing is added then.
        """
        hashed = hash(query.uid) & _HASH_MASK
        slot, known = self._find(query.uid, hashed)
        if known is not None:
            return known, self._rows[self._slots[slot]]
        record = marshal.dumps(
            (query.uid, query.problem, query.answer, query.level, dict(query.info), _plain(query.turns))
        )
        self._file.write(record)
        self._slots[slot] = len(self._hashes)
        self._hashes.append(hashed)
        self._rows.append(row)
        self._ends.append(self._ends[-1] + len(record))
        if 2 * len(self._hashes) > len(self._slots):
            self._grow()
        return None

    def query_at(self, index: int) -> Query:
        """Return the query at this place of the order."""
        start, end = self._ends[index], self._ends[index + 1]
        self._file.flush()
        # Unlike seek and read this needs no lock: the position in the file is not shared state.
        return Query(*marshal.loads(os.pread(self._file.fileno(), end - start, start)))

    def uid_at(self, index: int) -> str:
        """Return the uid of the query at this place of the order."""
        return self.query_at(index).uid

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, uid: str) -> Query:
        _, found = self._find(uid, hash(uid) & _HASH_MASK)
        if found is None:
            raise KeyError(uid)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).from_queries, (list(self.values()),)

    def _find(self, uid: str, hashed: int) -> tuple[int, Query | None]:
        """Return the slot where a uid is or belongs, and its query if there is one."""
        slots, hashes = self._slots, self._hashes
        last = len(slots) - 1
        slot = hashed & last
        while (index := slots[slot]) != _EMPTY:
            if hashes[index] == hashed:
                query = self.query_at(index)
                if query.uid == uid:
                    return slot, query
            slot = (slot + 1) & last
        return slot, None

    def _grow(self) -> None:
        slots = array("q", [_EMPTY]) * (2 * len(self._slots))
        last = len(slots) - 1
        for index, hashed in enumerate(self._hashes):
            slot = hashed & last
            while slots[slot] != _EMPTY:
                slot = (slot + 1) & last
            slots[slot] = index
        self._slots = slots
