"""Where the history lives: an SQLite database, in memory or on disk, that can be taken back to an earlier mark.

SQLite, because it comes with Python, is crash-safe, keeps its memory within a small cache however large the file is,
and finds a query's responses by index; a key-value store mapped into memory would count as the process's own.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from algorithms.r3_grpo.entry import Entry, pack, unpack
from algorithms.rollout.types import Context

FORMAT = 1
CACHE_MIB = 64

_SCHEMA = """
CREATE TABLE queries (id INTEGER PRIMARY KEY, uid BLOB NOT NULL UNIQUE);
CREATE TABLE outcomes (
    event INTEGER PRIMARY KEY, query INTEGER NOT NULL, correct INTEGER NOT NULL, reward REAL NOT NULL);
CREATE INDEX outcomes_of_query ON outcomes (query, event, correct, reward);
CREATE TABLE entries (
    event INTEGER PRIMARY KEY, query INTEGER NOT NULL, correct INTEGER NOT NULL, context TEXT NOT NULL,
    truncated INTEGER NOT NULL, age INTEGER NOT NULL, digest BLOB, reward REAL NOT NULL, step INTEGER NOT NULL,
    removed INTEGER, text BLOB NOT NULL, packed BLOB NOT NULL);
CREATE INDEX pools ON entries (query, correct, age, context, truncated) WHERE removed IS NULL;
CREATE INDEX digests ON entries (query, correct, context, digest) WHERE removed IS NULL AND digest IS NOT NULL;
CREATE INDEX removals ON entries (removed) WHERE removed IS NOT NULL;
"""


class HistoryDatabase:
    """Stored responses and outcomes, each with the number of the event that wrote it.

    What leaves a pool is only marked as removed while a checkpoint may still want it back.

    Args:
        path: the file; None: in memory.

    Raises:
        ValueError: the file is not a history database, or one of another format.
    """

    def __init__(self, path: Path | None = None) -> None:
        # Every commit is written through to the file, and a checkpoint's mark through to the disk.
        self._connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path}: not a usable history database ({error})") from error
        self.event = max(self._last("entries"), self._last("outcomes"))
        self._kept_from = 0  # entries newer than the newest mark are in no checkpoint
        self._connection.execute("BEGIN")

    def _prepare(self) -> None:
        for pragma in ("page_size=16384", "journal_mode=WAL", "synchronous=NORMAL", f"cache_size=-{CACHE_MIB * 1024}"):
            self._connection.execute(f"PRAGMA {pragma}")
        stored = self._number("PRAGMA user_version")
        if stored == 0:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
        elif stored != FORMAT:
            raise sqlite3.DatabaseError(f"its format is {stored}, this version reads {FORMAT}")

    # -- Writing -----------------------------------------------------------------------------------------------------

    def add(self, entry: Entry, digest: bytes | None) -> None:
        """Store an entry as the youngest of its pool, or, if one has its digest, in that one's place."""
        query = self._query(entry.uid, create=True)
        self.event += 1
        age = self.event
        if digest is not None:
            same = self._connection.execute(
                "SELECT event, age FROM entries INDEXED BY digests WHERE query=? AND correct=? AND context=? "
                "AND digest=? AND removed IS NULL AND digest IS NOT NULL",
                (query, entry.correct, entry.context.value, digest),
            ).fetchone()
            if same:
                age = same[1]
                self._remove(same[0])
        self._connection.execute(
            "INSERT INTO entries VALUES (?,?,?,?,?,?,?,?,?,NULL,?,?)",
            (
                self.event,
                query,
                entry.correct,
                entry.context.value,
                entry.truncated,
                age,
                digest,
                entry.reward,
                entry.step,
                _encoded(entry.text),
                pack(entry),
            ),
        )

    def trim(self, uid: str, correct: bool, capacity: int) -> None:
        """Remove the oldest entries of a pool beyond its capacity."""
        events = [event for event, _, _ in self.pool(uid, correct)]
        for event in events[: max(0, len(events) - capacity)]:
            self._remove(event)

    def record(self, uid: str, correct: bool, reward: float) -> None:
        """Store the outcome of an attempt."""
        self.event += 1
        row = (self.event, self._query(uid, create=True), correct, reward)
        self._connection.execute("INSERT INTO outcomes VALUES (?,?,?,?)", row)

    def _remove(self, event: int) -> None:
        if event > self._kept_from:
            self._connection.execute("DELETE FROM entries WHERE event=?", (event,))
        else:
            self._connection.execute("UPDATE entries SET removed=? WHERE event=?", (self.event, event))

    # -- Reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._number("SELECT count(*) FROM entries WHERE removed IS NULL")

    def pool(self, uid: str, correct: bool) -> list[tuple[int, str, bool]]:
        """List (event, context, truncated) of a query's right or wrong entries, oldest first."""
        return self._connection.execute(
            "SELECT event, context, truncated FROM entries INDEXED BY pools "
            "WHERE query=? AND correct=? AND removed IS NULL ORDER BY age",
            (self._query(uid), correct),
        ).fetchall()

    def entry(self, event: int) -> Entry:
        """Read one entry.

        Raises:
            ValueError: it is damaged.
        """
        uid, context, reward, correct, truncated, step, text, packed = self._connection.execute(
            "SELECT uid, context, reward, correct, truncated, step, text, packed "
            "FROM entries JOIN queries ON queries.id=query WHERE event=?",
            (event,),
        ).fetchone()
        return Entry(
            uid=_decoded(uid),
            context=Context(context),
            reward=reward,
            correct=bool(correct),
            truncated=bool(truncated),
            step=step,
            text=_decoded(text),
            **unpack(packed),
        )

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
        rows = self._connection.execute("SELECT event FROM entries WHERE removed IS NULL ORDER BY query, correct, age")
        return [event for (event,) in rows]

    # -- Marks -------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what was added since the last commit to the file."""
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def mark(self) -> int:
        """Write everything through to the disk; the number returned takes `roll_back` to this state again."""
        self._connection.execute("COMMIT")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.execute("BEGIN")
        self._kept_from = self.event
        return self.event

    def roll_back(self, mark: int) -> None:
        """Forget what was written after a mark, and take back what was removed after it."""
        for table in ("entries", "outcomes"):
            self._connection.execute(f"DELETE FROM {table} WHERE event>?", (mark,))
        self._connection.execute("UPDATE entries SET removed=NULL WHERE removed>?", (mark,))
        self.event = self._kept_from = mark
        self.commit()

    def forget_before(self, mark: int) -> None:
        """Delete for good what was removed up to a mark, the oldest that `roll_back` may be asked for."""
        self._connection.execute("DELETE FROM entries WHERE removed<=?", (mark,))
        self.commit()

    def clear(self) -> None:
        """Delete everything."""
        for table in ("entries", "outcomes", "queries"):
            self._connection.execute(f"DELETE FROM {table}")
        self.event = self._kept_from = 0
        self.commit()

    def close(self) -> None:
        """Commit and close the file; once more does nothing."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed already
            self._connection.execute("COMMIT")
        self._connection.close()

    def _query(self, uid: str, *, create: bool = False) -> int:
        key = _encoded(uid)
        found = self._connection.execute("SELECT id FROM queries WHERE uid=?", (key,)).fetchone()
        if found:
            return int(found[0])
        if not create:
            return -1
        return int(self._connection.execute("INSERT INTO queries (uid) VALUES (?)", (key,)).lastrowid or 0)

    def _last(self, table: str) -> int:
        return self._number(f"SELECT coalesce(max(event), 0) FROM {table}")

    def _number(self, sql: str, arguments: tuple[object, ...] = ()) -> int:
        return int(self._connection.execute(sql, arguments).fetchone()[0])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
