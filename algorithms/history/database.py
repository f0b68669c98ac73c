"""The history's storage: an SQLite database, in memory or on disk, that can be rolled back to an earlier mark.

SQLite, because it comes with Python, is crash-safe, keeps its memory within a small cache however large the file is,
and finds a query's responses by index; a key-value store mapped into memory would count as the process's own.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from algorithms.history.entry import DamagedEntryError, ReplayEntry, Row, pack, unpack

FORMAT = 3
CACHE_KIB = 64 * 1024
BUSY_S = 600.0  # while somebody else reads the file, a commit waits

# What is large is written once, in the order of events, and never moved. What says which of it a query's pools hold is
# small and lies together by query, so that a step touches few pages.
_SCHEMA = """
CREATE TABLE queries (id INTEGER PRIMARY KEY, uid BLOB NOT NULL UNIQUE);
CREATE TABLE outcomes (
    query INTEGER NOT NULL, event INTEGER NOT NULL, correct INTEGER NOT NULL, reward REAL NOT NULL,
    PRIMARY KEY (query, event)) WITHOUT ROWID;
CREATE TABLE responses (
    event INTEGER PRIMARY KEY, query INTEGER NOT NULL, correct INTEGER NOT NULL, context TEXT NOT NULL,
    truncated INTEGER NOT NULL, reward REAL NOT NULL, step INTEGER NOT NULL, text BLOB NOT NULL, feedback BLOB NOT NULL,
    packed BLOB NOT NULL);
CREATE TABLE pools (
    query INTEGER NOT NULL, correct INTEGER NOT NULL, age INTEGER NOT NULL, event INTEGER NOT NULL,
    context TEXT NOT NULL, truncated INTEGER NOT NULL, digest BLOB, PRIMARY KEY (query, correct, age)) WITHOUT ROWID;
CREATE TABLE removed (
    removal INTEGER NOT NULL, event INTEGER NOT NULL, query INTEGER NOT NULL, correct INTEGER NOT NULL,
    age INTEGER NOT NULL, context TEXT NOT NULL, truncated INTEGER NOT NULL, digest BLOB,
    PRIMARY KEY (removal, event)) WITHOUT ROWID;
"""
_MEMBER = "query, correct, age, event, context, truncated, digest"


class HistoryDatabase:
    """Stored responses and outcomes, each with the number of the event that wrote it.

    What leaves a pool is only marked as removed while a checkpoint may still want it back.

    Args:
        path: the file; None: in memory.

    Raises:
        ValueError: the file is not a history database, or one of another format.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._connection = sqlite3.connect(
            path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path}: not a usable history database ({error})") from error
        self.event = max(self._last("responses"), self._last("outcomes"))
        self._stored = self._count()
        self._last_query: tuple[str | None, int] = (None, -1)
        self._kept_from = 0  # entries newer than the newest mark are in no checkpoint
        self._connection.execute("BEGIN")

    def _prepare(self) -> None:
        # A rollback journal holds only what a step overwrites, and most of what it writes is new: a write-ahead log
        # would write all of it twice, and needs memory shared through the file, which network file systems lack.
        for pragma in ("page_size=16384", "journal_mode=TRUNCATE", "synchronous=FULL", f"cache_size=-{CACHE_KIB}"):
            self._connection.execute(f"PRAGMA {pragma}")
        stored = self._number("PRAGMA user_version")
        if stored == 0:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
        elif stored != FORMAT:
            raise sqlite3.DatabaseError(f"its format is {stored}, this version reads {FORMAT}")

    # -- Writing -----------------------------------------------------------------------------------------------------

    def add(self, entry: ReplayEntry, digest: bytes | None) -> None:
        """Store an entry as the youngest of its pool, or, if one has its digest, in that one's place."""
        pool = self._query(entry.uid, create=True), entry.correct
        self.event += 1
        age = self.event
        if digest is not None:
            same = self._connection.execute(
                "SELECT age, event FROM pools WHERE query=? AND correct=? AND context=? AND digest=?",
                (*pool, entry.context, digest),
            ).fetchone()
            if same:
                age = same[0]
                self._remove(*pool, *same)
        kind = entry.context, entry.truncated
        texts = _encoded(entry.text), _encoded(entry.feedback)
        self._connection.execute("INSERT INTO pools VALUES (?,?,?,?,?,?,?)", (*pool, age, self.event, *kind, digest))
        self._connection.execute(
            "INSERT INTO responses VALUES (?,?,?,?,?,?,?,?,?,?)",
            (self.event, *pool, *kind, entry.reward, entry.step, *texts, pack(entry)),
        )
        self._stored += 1

    def trim(self, uid: str, correct: bool, context: str, capacity: int) -> None:
        """Remove the oldest entries of a pool's context beyond the capacity."""
        pool = self._query(uid), correct
        surplus = self._connection.execute(
            "SELECT age, event FROM pools WHERE query=? AND correct=? AND context=? "
            "ORDER BY age DESC LIMIT -1 OFFSET ?",
            (*pool, context, capacity),
        ).fetchall()
        for age, event in surplus:
            self._remove(*pool, age, event)

    def record(self, uid: str, correct: bool, reward: float) -> None:
        """Store the outcome of an attempt."""
        self.event += 1
        row = (self._query(uid, create=True), self.event, correct, reward)
        self._connection.execute("INSERT INTO outcomes VALUES (?,?,?,?)", row)

    def _remove(self, query: int, correct: bool, age: int, event: int) -> None:
        member = (query, correct, age)
        if self._kept_from < event < self.event:  # the newest row says how many events there were
            self._connection.execute("DELETE FROM responses WHERE event=?", (event,))
        else:
            self._connection.execute(
                f"INSERT INTO removed ({_MEMBER}, removal) "
                f"SELECT {_MEMBER}, ? FROM pools WHERE query=? AND correct=? AND age=?",
                (self.event, *member),
            )
        self._connection.execute("DELETE FROM pools WHERE query=? AND correct=? AND age=?", member)
        self._stored -= 1

    # -- Reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._stored

    def pool(self, uid: str, correct: bool) -> list[tuple[int, str, bool]]:
        """List (event, context, truncated) of a query's correct or incorrect entries, oldest first."""
        return self._connection.execute(
            "SELECT event, context, truncated FROM pools WHERE query=? AND correct=? ORDER BY age",
            (self._query(uid), correct),
        ).fetchall()

    def entry(self, event: int) -> ReplayEntry:
        """Read one entry.

        Raises:
            DamagedEntryError: it is not what was written.
        """
        row, packed = self._row(event)
        sequences = unpack(packed, row)
        uid, context, reward, correct, truncated, step, text, feedback = row
        try:
            return ReplayEntry(
                uid=_decoded(uid),
                context=context.decode(),
                reward=reward,
                correct=correct,
                truncated=truncated,
                step=step,
                text=_decoded(text),
                feedback=_decoded(feedback),
                **sequences,
            )
        except ValueError as error:  # of an entry whose checksum is that of its sequences alone
            raise DamagedEntryError(str(error)) from error

    def _row(self, event: int) -> tuple[Row, bytes]:
        """Everything of an entry, and its sequences packed; each value of its type, whatever became of it on disk."""
        try:
            found = self._connection.execute(
                "SELECT uid, CAST(context AS BLOB), CAST(reward AS REAL), correct, truncated, CAST(step AS INTEGER), "
                "CAST(text AS BLOB), CAST(feedback AS BLOB), CAST(packed AS BLOB) "
                "FROM responses JOIN queries ON queries.id=query WHERE event=?",
                (event,),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            raise DamagedEntryError(str(error)) from error
        if found is None or None in found:
            raise DamagedEntryError("it is missing")
        uid, context, reward, correct, truncated, step, text, feedback, packed = found
        return (uid, context, reward, bool(correct), bool(truncated), step, text, feedback), packed

    def attempts(self, uid: str) -> int:
        """Count the recorded outcomes of a query."""
        return self._number("SELECT count(*) FROM outcomes WHERE query=?", (self._query(uid),))

    def outcomes(self, uid: str, newest: int = 0) -> list[tuple[bool, float]]:
        """List (correct, reward) of a query's attempts, the newest first; all of them with `newest=0`."""
        rows = self._connection.execute(
            "SELECT correct, reward FROM outcomes WHERE query=? ORDER BY event DESC LIMIT ?",
            (self._query(uid), newest or -1),
        )
        return [(bool(correct), reward) for correct, reward in rows]

    def uids(self) -> list[str]:
        """List the queries that anything is known of, in the order in which they appeared."""
        return [_decoded(uid) for (uid,) in self._connection.execute("SELECT uid FROM queries ORDER BY id")]

    def pools_in_order_of_writing(self) -> Sequence[int]:
        """List the events of all entries, such that adding them again in this order gives the same pools."""
        rows = self._connection.execute("SELECT event FROM pools ORDER BY query, correct, age")
        return [event for (event,) in rows]

    # -- Marks -------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what was added since the last commit through to the disk."""
        if self._connection.in_transaction:  # a full disk ends one
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def savepoint(self) -> int:
        """Commit; the number returned takes `rollback` to this state again."""
        self.commit()
        self._kept_from = self.event
        return self.event

    def rollback(self, mark: int) -> None:
        """Delete what was written after a mark, and restore what was removed after it.

        Raises:
            ValueError: what was written up to the mark is not all there.
        """
        if self.event < mark:
            raise ValueError(f"the history ends at its event {self.event}, before event {mark}")
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")
        for table in ("pools", "responses", "outcomes"):
            self._connection.execute(f"DELETE FROM {table} WHERE event>?", (mark,))
        self._connection.execute(
            f"INSERT INTO pools ({_MEMBER}) SELECT {_MEMBER} FROM removed WHERE removal>? AND event<=?", (mark, mark)
        )
        self._connection.execute("DELETE FROM removed WHERE removal>?", (mark,))
        self.event = self._kept_from = mark
        self._stored = self._count()
        self._last_query = (None, -1)  # a full disk may have taken it back
        self.commit()

    def prune(self, mark: int) -> None:
        """Delete permanently what was removed up to a mark, the oldest one that `rollback` still accepts."""
        self._connection.execute(
            "DELETE FROM responses WHERE event IN (SELECT event FROM removed WHERE removal<=? AND event<?)",
            (mark, self.event),
        )
        self._connection.execute("DELETE FROM removed WHERE removal<=? AND event<?", (mark, self.event))
        self.commit()

    def clear(self) -> None:
        """Delete everything."""
        for table in ("pools", "removed", "responses", "outcomes", "queries"):
            self._connection.execute(f"DELETE FROM {table}")
        self.event = self._kept_from = self._stored = 0
        self._last_query = (None, -1)
        self.commit()

    def close(self) -> None:
        """Commit and close the file; a second call does nothing."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed already
            if self._connection.in_transaction:  # a full disk ends one
                self._connection.execute("COMMIT")
        self._connection.close()

    def _query(self, uid: str, *, create: bool = False) -> int:
        if uid == self._last_query[0]:  # a group's responses come one after the other
            return self._last_query[1]
        key = _encoded(uid)
        found = self._connection.execute("SELECT id FROM queries WHERE uid=?", (key,)).fetchone()
        if not (found or create):
            return -1
        if not found:
            found = (self._connection.execute("INSERT INTO queries (uid) VALUES (?)", (key,)).lastrowid,)
        number = int(found[0])
        self._last_query = (uid, number)
        return number

    def _count(self) -> int:
        return self._number("SELECT count(*) FROM pools")

    def _last(self, table: str) -> int:
        return self._number(f"SELECT coalesce(max(event), 0) FROM {table}")

    def _number(self, sql: str, arguments: tuple[object, ...] = ()) -> int:
        return int(self._connection.execute(sql, arguments).fetchone()[0])


def copy_database(source: Path, target: Path) -> None:
    """Copy a history as it was last committed, also while a process writes it; in place of one that is there.

    Raises:
        sqlite3.OperationalError: there is no such file.
    """
    target.unlink(missing_ok=True)
    with (
        contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", timeout=BUSY_S, uri=True)
        ) as stored,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        stored.backup(copy)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
