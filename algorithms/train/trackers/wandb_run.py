"""Weights & Biases: a run on its server, or offline in the run's own folder."""

import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from algorithms.config.errors import ConfigError
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tracker import CONVERSATIONS, EVALUATION, PROJECT, Outcome, Tracker, flat

# A file begins with 7 bytes of its own. What follows is LevelDB's log: blocks of 32 KiB, in which a record, or a part
# of one, has a header of checksum, length and kind. https://github.com/google/leveldb/blob/main/doc/log_format.md
_FILE_HEADER, _BLOCK = 7, 32768
_HEADER = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def stored_points(path: Path) -> set[tuple[str, int]]:
    """Return the tags and steps in a `.wandb` file; without what a killed process did not finish."""
    points = set()
    for record in _parsed(path):
        if record.WhichOneof("record_type") == "history":
            history = record.history
            points |= {(item.nested_key[0] if item.nested_key else item.key, history.step.num) for item in history.item}
    return points


def is_complete(path: Path) -> bool:
    """Return whether a `.wandb` file has the record that ends a run's session."""
    return path.exists() and any(record.WhichOneof("record_type") == "exit" for record in _parsed(path))


def _parsed(path: Path) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made at run time

    for content in _records(path.read_bytes()):
        record = Record()
        try:
            record.ParseFromString(content)
        except DecodeError:
            return
        yield record


def _records(content: bytes) -> Iterator[bytes]:
    position, begun = _FILE_HEADER, b""
    while position + _HEADER.size <= len(content):
        room = _BLOCK - position % _BLOCK
        if room < _HEADER.size:
            position += room
            continue
        _, length, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        part = content[position : position + length]
        if not 1 <= kind <= _LAST or len(part) < length:
            return
        position += length
        begun += part
        if kind in (_WHOLE, _LAST):
            yield begun
            begun = b""


# Metrics that hold the training step: of a step's own numbers, and of its evaluation's.
_STEP, _EVALUATION_STEP = "step", "evaluation_step"
_WRITING_LIMIT_S = 60.0


class WandbRun(Tracker):
    """A run of wandb. A step appears on the server when the next one begins.

    wandb takes rows in their order only, so an evaluation that is made late gets the next free row. Charts have the
    training step on their axis all the same: it is a metric of each row, and the server knows its last value.
    """

    name = package = "wandb"
    address_variable = "WANDB_BASE_URL"

    def __init__(self, client: Any, points: set[tuple[str, int]]) -> None:
        self._client = client
        self._points = points
        # Online the server knows how far the run is. Offline nobody does, but for the files.
        summary = {} if client.offline else dict(client.summary)
        self._sent_until = {metric: int(summary.get(metric, -1)) for metric in (_STEP, _EVALUATION_STEP)}
        self._row, self._step_in_row = client.starting_step - 1, -1
        self._on_an_axis: set[str] = set()
        self.last_step = max([self._sent_until[_STEP], *(step for _, step in points)])

    @classmethod
    def check(cls) -> None:
        """Check that a server answers at WANDB_BASE_URL and that somebody is logged in, if wandb is online.

        Raises:
            OSError: no server answers.
            ConfigError: nobody is logged in: wandb would ask for a key once everything has started.
        """
        if os.environ.get("WANDB_MODE", "online") == "online":
            super().check()
            _check_login()

    @classmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin or continue a run; without WANDB_DIR its files are in the run's folder."""
        import wandb

        folder = os.environ.get("WANDB_DIR") or str(run.path)
        if stored:
            _wait_for_a_name_of_its_own(Path(folder) / "wandb", stored["id"])
        with _without_arguments():
            client = wandb.init(
                project=stored.get("project") or os.environ.get("WANDB_PROJECT") or PROJECT,
                entity=stored.get("entity"),
                id=stored.get("id"),
                name=None if stored else os.environ.get("WANDB_NAME") or run.name,
                dir=folder,
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(console="off"),
            )
        points: set[tuple[str, int]] = set()
        if stored and client.offline:
            for file in (Path(folder) / "wandb").glob(f"offline-run-*/run-{client.id}.wandb"):
                points |= stored_points(file)
        return cls(client, points)

    def identity(self) -> dict[str, str]:
        """Return id, project and entity."""
        found = {"id": self._client.id, "project": self._client.project, "entity": self._client.entity}
        return {key: value for key, value in found.items() if value}

    def holds(self, tag: str, step: int) -> bool:
        """Return whether the server is beyond this step, or an earlier offline file has the point."""
        return step <= self._sent_until[_axis(tag)] or (tag, step) in self._points

    def settings(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration."""
        self._client.config.update(dict(config), allow_val_change=True)

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log numbers at a step."""
        axes = {tag: _axis(tag) for tag in values}
        for section, axis in {(tag.partition("/")[0], axis) for tag, axis in axes.items()}:
            if section not in self._on_an_axis:
                self._on_an_axis.add(section)
                self._client.define_metric(axis, hidden=True)
                self._client.define_metric(f"{section}/*", step_metric=axis)
        self._client.log({**values, **dict.fromkeys(axes.values(), step)}, step=self._row_of(step))

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a `wandb.Table`."""
        import wandb

        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._client.log({CONVERSATIONS: table}, step=self._row_of(step))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Set `summary/…` in the run's summary."""
        self._client.summary.update(flat(summary, "/", "summary/"))

    def close(self, outcome: Outcome) -> None:
        """Finish the run; offline, wait until all of it is in the file, which the next session of the run reads."""
        self._client.finish(exit_code=0 if outcome is Outcome.FINISHED else 1)
        if self._client.offline:
            # wandb's service writes the end of the file after `finish` has returned.
            file, due = Path(self._client.settings.sync_file), time.monotonic() + _WRITING_LIMIT_S
            while not is_complete(file) and time.monotonic() < due:
                time.sleep(0.01)

    def _row_of(self, step: int) -> int:
        """Return the row for numbers of a step: the open one if it is that step's, else the next that is free."""
        if step != self._step_in_row:
            self._row, self._step_in_row = max(step, self._row + 1), step
        return self._row


def _axis(tag: str) -> str:
    return _EVALUATION_STEP if tag.startswith(EVALUATION) else _STEP


@contextmanager
def _without_arguments() -> Iterator[None]:
    """Hide the command line, which wandb would upload: a setting in it may be a secret."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = arguments


def _check_login() -> None:
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup().settings
    try:
        if settings.mode not in ("online", "shared"):  # `wandb offline` was called in this folder
            return
        # Without `prompt` it only looks: in the environment, in wandb's settings and in ~/.netrc.
        found = wbauth.authenticate_session(
            host=settings.base_url, source="r3-grpo", prompt=False, update_session=False
        )
    finally:
        wandb.teardown()  # ends the process that the set-up began
    if found is None:
        raise ConfigError(
            f"run.trackers: wandb has no log-in for {settings.base_url}; fix: wandb login, or WANDB_API_KEY=…, or "
            "WANDB_MODE=offline to keep the run in its own folder"
        )


def _wait_for_a_name_of_its_own(folder: Path, run_id: str) -> None:
    """Wait while a session of the run that began in this very second has the files that the next one would write."""
    while list(folder.glob(f"*run-{datetime.now():%Y%m%d_%H%M%S}-{run_id}")):
        time.sleep(0.05)
