"""The interface of every tracker. One file each implements it with the tracker's own client."""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from algorithms.train.run_directory import RunDirectory

PROJECT = "r3-grpo"
CONVERSATIONS = "conversations"
EVALUATION = "eval/"  # what tags of an evaluation begin with: it may come after the rest of its step
_PATIENCE_S = 5.0


class Outcome(Enum):
    """How a process ended its share of a run."""

    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @classmethod
    def of(cls, error: BaseException) -> "Outcome":
        """Return the outcome of a process that an error ends."""
        return cls.INTERRUPTED if isinstance(error, KeyboardInterrupt) else cls.FAILED


class Tracker(ABC):
    """One tracked run of a tracker. Any method but `holds` may raise what the client raises.

    Attributes:
        name: as `run.trackers` has it, which is also the extra that installs it.
        package: what has to be installed.
        address_variable: environment variable that names its server.
        last_step: the last step that the tracked run holds from earlier processes; -1 for none.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    address_variable: ClassVar[str]
    last_step: int = -1

    @classmethod
    def check(cls) -> None:
        """Raise OSError if no server answers at the address in the environment.

        A client would try for minutes. Addresses that are not of http are not checked.
        """
        parts = urlsplit(os.environ.get(cls.address_variable) or "")
        if parts.scheme in ("http", "https") and parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname, port), timeout=_PATIENCE_S).close()

    @classmethod
    @abstractmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin a tracked run, or continue the one that an earlier process began.

        Args:
            run: the run's folder.
            stored: what `identity` returned then; empty for a new tracked run.
        """

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return the identity by which the tracked run is found again."""

    @abstractmethod
    def holds(self, tag: str, step: int) -> bool:
        """Return whether an earlier process sent this point, and it arrived."""

    @abstractmethod
    def settings(self, config: Mapping[str, Any]) -> None:
        """Record the resolved configuration, section → setting → value, and `algorithm`."""

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Record numbers by tag; `time_s` is when they were measured, in seconds since 1970."""

    @abstractmethod
    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record sample conversations as a table; each row has the same columns."""

    @abstractmethod
    def summary(self, summary: Mapping[str, Any]) -> None:
        """Record the content of summary.json."""

    @abstractmethod
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
