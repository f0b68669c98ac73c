"""The interface of every tracker, which one file each implements, and the thread that delivers to it."""

import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from algorithms.train.run_directory import RunDirectory

PROJECT = "r3-grpo"
CONVERSATIONS = "conversations"
EVALUATION = "eval/"  # what tags of an evaluation begin with: it may come after the rest of its step
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 60.0


class Outcome(Enum):
    """How a process ended its share of a run."""

    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, error: BaseException) -> "Outcome":
        """Return the outcome of a process that an error ends."""
        return cls.INTERRUPTED if isinstance(error, KeyboardInterrupt) else cls.FAILED


class Tracker:
    """One tracked run of a tracker. A class needs `open`, `holds` and `scalars` of its own.

    Any method but `holds` may raise what the client raises.

    Attributes:
        name: as `run.trackers` has it; of the library's own it is also the extra that installs them.
        package: what has to be installed, as it is imported; empty for nothing.
        address_variable: environment variable that names its server; empty without one.
        last_step: the last step that the tracked run holds from earlier processes; -1 for none.
    """

    named_in = "run.trackers=[{}]"
    needed = ("open", "holds", "scalars")
    name: str = ""
    package: ClassVar[str] = ""
    address_variable: ClassVar[str] = ""
    last_step: int = -1

    @classmethod
    def check(cls) -> None:
        """Raise OSError if no server answers at the address in the environment.

        A client would try for minutes. Addresses that are not of http are not checked.
        """
        parts = urlsplit(os.environ.get(cls.address_variable) or "")
        if parts.scheme in ("http", "https") and parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname, port), timeout=CONNECT_TIMEOUT_S).close()

    @classmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin a tracked run, or continue the one that an earlier process began.

        Args:
            run: the run's folder.
            stored: what `identity` returned then; empty for a new tracked run.
        """
        raise NotImplementedError

    def holds(self, tag: str, step: int) -> bool:
        """Return whether an earlier process sent this point, and it arrived."""
        raise NotImplementedError

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Record numbers by tag.

        Args:
            step: one that may have come before: its evaluation comes apart, and what it `holds` is left out.
            values: tag → number.
            time_s: when they were measured, in seconds since 1970.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, str]:
        """Return the identity by which the tracked run is found again."""
        return {}

    def settings(self, config: Mapping[str, Any]) -> None:
        """Record the resolved configuration, section → setting → value, and `algorithm`."""

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record sample conversations as a table; each row has the same columns."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Record the content of summary.json."""

    def close(self, outcome: Outcome) -> None:
        """Send what is still in progress, and record how the run ended."""


def flat(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one: `{"run": {"seed": 0}}` becomes `{"run.seed": 0}`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, separator, f"{prefix}{key}{separator}")
        else:
            found[f"{prefix}{key}"] = value
    return found


_logger = logging.getLogger(__name__)


class Delivery:
    """Deliver to one tracker. A slow or absent server holds up no step, and its failures end no run.

    What fails is kept and tried again with the next record, and once more at the end. Points that the tracked run
    holds already are left out, so that a resumed run repeats none.

    Args:
        tracker: where to.
        patience_s: how long `close` waits for the tracker, in seconds.
    """

    def __init__(self, tracker: Tracker, patience_s: float = CLOSE_TIMEOUT_S) -> None:
        self.tracker, self._patience_s = tracker, patience_s
        self._incoming: queue.SimpleQueue[Callable[[], None] | Outcome] = queue.SimpleQueue()
        self._undelivered: deque[Callable[[], None]] = deque()
        self._warned = self._closed = False
        self._thread = threading.Thread(target=self._deliver_all, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def settings(self, config: Mapping[str, Any]) -> None:
        """Deliver the resolved configuration."""
        self._incoming.put(partial(self.tracker.settings, config))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Deliver numbers by tag."""
        self._incoming.put(partial(self._send_scalars, step, dict(values), time.time()))

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Deliver a table of conversations; none for no rows."""
        if rows:
            self._incoming.put(partial(self._send_conversations, step, rows))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Deliver the content of summary.json."""
        self._incoming.put(partial(self.tracker.summary, summary))

    def close(self, outcome: Outcome) -> None:
        """Wait until everything is delivered, up to a time limit; warn of the rest. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._incoming.put(outcome)
        self._thread.join(self._patience_s)
        late = self._thread.is_alive()
        if late or self._undelivered:
            reason = f"within {self._patience_s:g} s" if late else "up to the end"
            _logger.warning(
                "run.trackers: %s did not accept everything %s; resuming the run sends the missing numbers",
                self.tracker.name,
                reason,
            )

    def _send_scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        missing = {tag: value for tag, value in values.items() if not self.tracker.holds(tag, step)}
        if missing:
            self.tracker.scalars(step, missing, time_s)

    def _send_conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if not self.tracker.holds(CONVERSATIONS, step):
            self.tracker.conversations(step, rows)

    def _deliver_all(self) -> None:
        # waits: until there is something to deliver, or `close`
        while not isinstance(record := self._incoming.get(), Outcome):
            self._undelivered.append(record)
            while self._undelivered and self._succeeds(self._undelivered[0]):
                self._undelivered.popleft()
            # The next attempt begins with another: a record that the tracker can never take holds up no other.
            self._undelivered.rotate(-1)
        self._undelivered = deque(send for send in self._undelivered if not self._succeeds(send))
        self._succeeds(partial(self.tracker.close, record))

    def _succeeds(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # a client's, and what it lets through of its libraries
            if not self._warned:
                self._warned = True
                said = next(iter(str(error).splitlines()), "")
                _logger.warning(
                    "run.trackers: %s failed (%s: %s); the run continues, and what failed is tried again",
                    self.tracker.name,
                    type(error).__name__,
                    said,
                )
            return False
        return True
