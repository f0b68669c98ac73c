"""Trackio: a run in its local database, on your own server or in a Space."""

import contextlib
import os
import sys
import uuid
from collections import defaultdict
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

    def __init__(self, client: Any, *, resumed: bool) -> None:
        self._client = client
        self._held: dict[str, set[int]] = {}  # the steps of each tag; a server's tags are added as they are needed
        self._server = None
        if resumed and client.url is None:
            self._held = _stored_steps(client)
        elif resumed:
            self._server = _server(client)
        if resumed and client._initial_last_step is not None:
            self.last_step = client._initial_last_step

    @classmethod
    def open(cls, run: RunDirectory, stored: Mapping[str, str]) -> Self:
        """Begin or continue a run. Trackio finds runs by name only: a suffix separates those of one name."""
        import trackio

        project = stored.get("project") or os.environ.get("TRACKIO_PROJECT") or PROJECT
        name = stored.get("name") or f"{run.name}-{uuid.uuid4().hex[:8]}"
        with _quiet():
            # Not "must": a process that was killed early has sent nothing, and the run does not exist yet.
            client = trackio.init(project=project, name=name, resume="allow" if stored else "never", embed=False)
        return cls(client, resumed=bool(stored))

    def identity(self) -> dict[str, str]:
        """Return project and name."""
        return {"project": self._client.project, "name": self._client.name}

    def holds(self, tag: str, step: int) -> bool:
        """Return whether the database, or the server's, has this point."""
        if self._server is not None and tag not in self._held:
            named = {"project": self._client.project, "run": self._client.name, "run_id": self._client.id}
            found = self._server.predict(**named, metric_name=tag, api_name="/get_metric_values")
            self._held[tag] = {point["step"] for point in found}
        return step in self._held.get(tag, ())

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


def _stored_steps(client: Any) -> dict[str, set[int]]:
    """Return the steps that the local database has of each tag."""
    from trackio.sqlite_storage import SQLiteStorage

    steps = defaultdict(set)
    for row in SQLiteStorage.get_logs(client.project, client.name, run_id=client.id):
        for tag in row:
            steps[tag].add(row["step"])
    return steps


def _server(client: Any) -> Any:
    """Connect to the server, or the Space, that the client sends to: the client itself asks it for no tag."""
    from huggingface_hub.utils import get_token
    from trackio.remote_client import RemoteClient

    own = client._server_base_url
    return RemoteClient(own or client.url, hf_token=None if own else get_token(), write_token=client._write_token)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Send what the client prints to standard error: standard output is the command's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
