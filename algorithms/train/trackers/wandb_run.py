"""Weights & Biases: a run on its server, or offline in the run's own folder."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from algorithms.config.errors import ConfigError
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.tracker import CONVERSATIONS, PROJECT, Outcome, Tracker, flat
from algorithms.train.trackers.wandb_files import stored_points


class WandbRun(Tracker):
    """A run of wandb. Its step is the training step; a step appears on the server when the next one begins."""

    name = package = "wandb"
    address_variable = "WANDB_BASE_URL"

    def __init__(self, client: Any, points: set[tuple[str, int]]) -> None:
        self._client = client
        self._points = points
        # Online the server knows how far the run is. Offline nobody does, but for the files.
        self._sent_until = -1 if client.offline else client.starting_step - 1
        self.last_step = max([self._sent_until, *(step for _, step in points)])

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
        return step <= self._sent_until or (tag, step) in self._points

    def settings(self, config: Mapping[str, Any]) -> None:
        """Set the run's configuration."""
        self._client.config.update(dict(config), allow_val_change=True)

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log numbers at a step."""
        self._client.log(dict(values), step=step)

    def conversations(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a `wandb.Table`."""
        import wandb

        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._client.log({CONVERSATIONS: table}, step=step)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Set `summary/…` in the run's summary."""
        self._client.summary.update(flat(summary, "/", "summary/"))

    def close(self, outcome: Outcome) -> None:
        """Finish the run."""
        self._client.finish(exit_code=0 if outcome is Outcome.FINISHED else 1)


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
