"""Trackio: a run in its local database, on your own server or in a Space."""

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import yaml

from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tracker import CONVERSATIONS, PROJECT, Outcome, Tracker, flat

_SUMMARY = "summary"


class TrackioRun(Tracker):
    """A run of Trackio. The client writes from its own thread, and itself warns of what it cannot send."""

    name = package = "trackio"
    address_variable = "TRACKIO_SERVER_URL"

    def __init__(self, client: Any, points: set[tuple[str, int]], sent_until: int) -> None:
        self._client, self._points, self._sent_until = client, points, sent_until
        self.last_step = max([sent_until, *(step for _, step in points)])

    @classmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin or continue a run. Trackio finds runs by name only: a suffix separates those of one name."""
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project = stored.get("project") or os.environ.get("TRACKIO_PROJECT") or PROJECT
        name = stored.get("name") or f"{run.name}-{uuid.uuid4().hex[:8]}"
        with _quiet():
            # Not "must": a process that was killed early has sent nothing, and the run does not exist yet.
            client = trackio.init(project=project, name=name, resume="allow" if stored else "never", embed=False)
        if not stored:
            return cls(client, set(), -1)
        if client.url is not None:  # a server's; it is asked for the last step alone
            return cls(client, set(), -1 if client._initial_last_step is None else client._initial_last_step)
        rows = SQLiteStorage.get_logs(project, name, run_id=client.id)
        return cls(client, {(tag, row["step"]) for row in rows for tag in row}, -1)

    def identity(self) -> dict[str, str]:
        """Return project and name."""
        return {"project": self._client.project, "name": self._client.name}

    def holds(self, tag: str, step: int) -> bool:
        """Return whether the database has this point, or the server is beyond this step."""
        return step <= self._sent_until or (tag, step) in self._points

    def settings(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration, which goes with the next numbers."""
        self._client.config |= flat(config)

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log numbers at a step."""
        self._client.log(dict(values), step=step)

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a `trackio.Table`."""
        import pandas as pd
        import trackio

        self._client.log({CONVERSATIONS: trackio.Table(dataframe=pd.DataFrame(list(rows)))}, step=step)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Log the summary as Markdown at the last step: Trackio has no other place for it."""
        import trackio

        if not self.holds(_SUMMARY, summary["steps"]):
            text = f"```yaml\n{yaml.safe_dump(dict(summary), sort_keys=False)}```\n"
            self._client.log({_SUMMARY: trackio.Markdown(text)}, step=summary["steps"])

    def close(self, outcome: Outcome) -> None:
        """Finish the run."""
        with _quiet():
            self._client.finish()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Send what the client prints to standard error: standard output is the command's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
