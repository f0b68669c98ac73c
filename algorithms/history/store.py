"""The history: earlier responses to each query, correct and incorrect ones separately."""

import contextlib
import hashlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from algorithms.history.arrays import export_arrays, import_arrays
from algorithms.history.database import HistoryDatabase
from algorithms.history.entry import DamagedEntryError, ReplayEntry
from algorithms.rollout.types import Context

__all__ = ["Contexts", "ReplayEntry", "ReplayHistory", "Statistic"]

FILE_NAME = "history.sqlite"  # in a run directory

Contexts = Literal["same", "any"]
Statistic = Literal["correct", "reward"]

_WRITER = "history-writer"

_logger = logging.getLogger(__name__)


class ReplayHistory:
    """Responses and outcome statistics by query.

    Each query has first-in-first-out pools: successes and failures of each context apart, so that no flood of failures
    evicts a success, and none of hinted, reflected or distilled responses the plain ones. With `dedupe`,
    a response that repeats the context and the response tokens of a stored one takes its place, age included:
    its log-probs are fresher, and repetition does not make it outlive rarer responses.

    Args:
        capacity: entries of each pool; None: unbounded.
        dedupe: whether repeated responses share one entry.
        history_window: how many of a query's last plain attempts count for its mean; 0: all.
        path: the database file that holds everything; None: in memory.

    Raises:
        ValueError: `capacity` is below 1, `history_window` is negative, or `path` is not a history.
    """

    def __init__(
        self,
        *,
        capacity: int | None = 8,
        dedupe: bool = True,
        history_window: int = 0,
        path: Path | None = None,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1, or None for no bound, got {capacity}")
        if history_window < 0:
            raise ValueError(f"history_window must not be negative, got {history_window}")
        self.capacity = capacity
        self.dedupe = dedupe
        self.history_window = history_window
        self.path = path
        self._opened = HistoryDatabase(path)
        self._writer: Future[None] | None = None
        self._damaged: set[int] = set()
        self._warned = False

    def write_in_background(self, write: Callable[[], None]) -> None:
        """Let a thread add to the history; any other use of it waits until the thread is done.

        An error of the thread is raised by `wait`, and by any other use: a step of which a part is missing is no state.
        A process that is killed meanwhile leaves what was committed before.
        """
        self.wait()
        self._writer = Future()
        threading.Thread(target=_write, args=(write, self._writer), name=_WRITER).start()

    def wait(self) -> None:
        """Wait until all writes are done.

        Raises:
            Exception: the error of a failed one, until `rollback` or `load_state_dict` has put the history right.
        """
        if self._writer is None or threading.current_thread().name == _WRITER:
            return
        # waits: the thread writes to the disk and to nothing else; a signal ends the wait
        if (error := self._writer.exception()) is not None:
            raise error
        self._writer = None

    @property
    def _database(self) -> HistoryDatabase:
        self.wait()
        return self._opened

    def __len__(self) -> int:
        """Count the stored entries."""
        return len(self._database)

    def add(self, entry: ReplayEntry) -> None:
        """Store a response; a full pool loses the oldest of its context. Counts for no statistic: see `record`."""
        digest = hashlib.blake2b(entry.response_tokens.tobytes(), digest_size=16).digest() if self.dedupe else None
        self._database.add(entry, digest)
        if self.capacity is not None:
            self._database.trim(entry.uid, entry.correct, entry.context, self.capacity)

    def record(self, uid: str, correct: bool, reward: float) -> None:
        """Count the outcome of one plain attempt, stored or not.

        Raises:
            ValueError: `reward` is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"the reward of an attempt at query {uid!r} is {reward}")
        self._database.record(uid, bool(correct), float(reward))

    def commit(self) -> None:
        """Write what was added to the file, if there is one. Once per step is enough."""
        self._database.commit()

    def attempts(self, uid: str) -> int:
        """Count the plain attempts at a query so far, those outside the window included."""
        return self._database.attempts(uid)

    def mean(self, uid: str, statistic: Statistic) -> float | None:
        """Average the outcomes of a query's plain attempts, over the window; None without any.

        Raises:
            ValueError: `statistic` is neither `correct` nor `reward`.
        """
        if statistic not in ("correct", "reward"):
            raise ValueError(f"statistic must be correct or reward, got {statistic!r}")
        outcomes = self._database.outcomes(uid, self.history_window)
        values = [float(correct) if statistic == "correct" else reward for correct, reward in outcomes]
        return math.fsum(values) / len(values) if values else None

    def sample_opposite_outcomes(
        self, uid: str, *, correct_group: bool, k: int, contexts: Contexts, context: str, rng: Generator
    ) -> list[ReplayEntry]:
        """Draw what a homogeneous group lacks: successes for an all-incorrect one, failures for an all-correct one.

        Uniformly at random without replacement; of failures, truncated ones only where finished ones run out. What is
        drawn and turns out to be damaged on disk is left out, and nothing drawn instead: a draw does not depend on what
        was known before.

        Args:
            uid: the query.
            correct_group: whether the group is all right.
            k: the most entries to draw; fewer, down to none, come where the pool has no more.
            contexts: `same`: only entries of the group's own context, where distilled ones count as plain; `any`: every
                entry of the query.
            context: the group's context.
            rng: the only source of chance.

        Raises:
            ValueError: `contexts` is neither `same` nor `any`.
        """
        if contexts not in ("same", "any"):
            raise ValueError(f"contexts must be same or any, got {contexts!r}")
        pool = self._database.pool(uid, not correct_group)
        own = {context, Context.DISTILLED} if context == Context.PLAIN else {context}
        eligible = [(event, truncated) for event, each, truncated in pool if contexts == "any" or each in own]
        finished = [event for event, truncated in eligible if not truncated]
        if not correct_group:
            drawn = _draw([event for event, _ in eligible], k, rng)
        else:
            drawn = _draw(finished, k, rng)
            drawn += _draw([event for event, truncated in eligible if truncated], k - len(drawn), rng)
        return self._intact(drawn)

    def entries(self, uid: str, *, correct: bool) -> list[ReplayEntry]:
        """Read all stored correct, or incorrect, responses to a query, oldest first.

        Raises:
            ValueError: one is damaged on disk.
        """
        return [self._database.entry(event) for event, _, _ in self._database.pool(uid, correct)]

    def sample_failure(self, uid: str, rng: Generator) -> ReplayEntry | None:
        """Draw one stored plain failure uniformly, for a reflection prompt to quote; None without any, or damaged."""
        plain = [event for event, context, _ in self._database.pool(uid, False) if context == Context.PLAIN]
        return next(iter(self._intact(_draw(plain, 1, rng))), None)

    def count_damaged(self) -> int:
        """Count the drawn entries that were damaged, each once, since the last call."""
        count = len(self._damaged)
        self._damaged.clear()
        return count

    def _intact(self, events: Sequence[int]) -> list[ReplayEntry]:
        """Read entries; the damaged ones are left out and counted."""
        entries = []
        for event in events:
            try:
                entries.append(self._database.entry(event))
            except DamagedEntryError as error:
                self._damaged.add(event)
                self._warn(error)
        return entries

    def _warn(self, error: DamagedEntryError) -> None:
        if not self._warned:
            _logger.warning(
                "%s: a stored response is damaged (%s) and is left out, as others will be; replay/damaged counts them; "
                "check the disk",
                self.path or "the history",
                error,
            )
        self._warned = True

    def savepoint(self) -> int:
        """Write everything to the disk; `rollback` to the returned number restores this state."""
        return self._database.savepoint()

    def rollback(self, mark: int) -> None:
        """Return to a mark: delete what was added since, and restore what was evicted since."""
        self._forget_writer()
        self._database.rollback(mark)

    def prune(self, mark: int) -> None:
        """Free what only marks older than this one need."""
        self._database.prune(mark)

    def close(self) -> None:
        """Close the file after all writes are done; the error of a failed write is not raised any more."""
        self._forget_writer()
        self._opened.close()

    def _forget_writer(self) -> None:
        """Wait until all writes are done, and pass over the error of a failed one."""
        with contextlib.suppress(Exception):
            self.wait()
        self._writer = None

    def save(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state for a checkpoint: everything as arrays, or of a history in a file only its position."""
        if self.path is None:
            return self.state_dict()
        return {}, {"savepoint": self.savepoint(), "entries": len(self)}

    def restore(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        """Restore the result of `save`; a history in a file is rolled back to its position.

        Raises:
            ValueError: the file does not hold what the checkpoint was made with.
        """
        if "savepoint" not in metadata:
            self.load_state_dict(arrays, metadata)
            return
        try:
            self.rollback(metadata["savepoint"])
        except ValueError as error:
            raise ValueError(
                f"{self.path}: {error}: it was deleted, belongs to another run, or was rolled back to an older "
                "checkpoint; fix: put it back, or --resume RUN/checkpoints/step_NNNNNN with that older one"
            ) from error
        if len(self) != metadata["entries"]:
            raise ValueError(
                f"{self.path or 'a history in memory'} holds {len(self)} of the {metadata['entries']} responses that "
                "the checkpoint was made with: it belongs to another run, or was damaged or deleted"
            )

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Export everything as flat arrays, for `np.savez` or safetensors (no pickle), and metadata for JSON."""
        return export_arrays(self._database)

    def load_state_dict(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        """Replace everything by what `state_dict` exported: later draws are those that it would have made.

        Settings stay this object's own. Where they differ from the saved ones, pools and windows shrink to them.

        Raises:
            ValueError: the state is of another format.
        """
        entries, outcomes = import_arrays(arrays, metadata)
        self._forget_writer()
        self._database.clear()
        for outcome in outcomes:
            self.record(*outcome)
        for entry in entries:
            self.add(entry)
        self.commit()


def _write(write: Callable[[], None], done: "Future[None]") -> None:
    try:
        write()
    except BaseException as error:  # the thread that waits raises it
        done.set_exception(error)
    else:
        done.set_result(None)


def _draw(events: Sequence[int], k: int, rng: Generator) -> list[int]:
    if not events or k <= 0:
        return []
    return [events[index] for index in rng.choice(len(events), size=min(k, len(events)), replace=False)]
