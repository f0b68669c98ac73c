"""Write a step's numbers to metrics.jsonl and to every tracker of the run."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from algorithms.config.schema import Sections
from algorithms.config.secrets import without_secrets
from algorithms.rollout.types import Rollout
from algorithms.train import metrics_file
from algorithms.train.gauges import Gauges
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.conversations import conversation_rows
from algorithms.train.trackers.delivery import Delivery
from algorithms.train.trackers.event_files import EventFiles
from algorithms.train.trackers.registry import TENSORBOARD, open_tracker, others
from algorithms.train.trackers.tracker import Outcome
from algorithms.utils.files import plain

_logger = logging.getLogger(__name__)


class Recorder:
    """The run's log. Use it as a context manager, or call `close`.

    Trackers other than TensorBoard get what they lack of the steps that are recorded already: what a killed process
    had not sent yet, or all of a run that had no such tracker.

    Args:
        run: where metrics.jsonl and the event files go.
        start_step: the last step that is already recorded; 0 for a new run. TensorBoard hides what an earlier
            process wrote for later steps. (metrics.jsonl is cut by `RunDirectory.truncate_after`.)
        trackers: names, as in `run.trackers`.

    Raises:
        ServiceError: a tracker cannot be started.
    """

    def __init__(self, run: RunDirectory, start_step: int = 0, trackers: Sequence[str] = (TENSORBOARD,)) -> None:
        self._run = run
        self._gauges = Gauges(run.name)
        self._start_step = start_step
        self._deliveries: list[Delivery] = []
        try:
            for name in others(trackers):
                self._deliveries.append(Delivery(open_tracker(name, run)))
            self._events = EventFiles(run, start_step) if TENSORBOARD in trackers else None
        except BaseException:
            for delivery in self._deliveries:
                delivery.close(Outcome.FAILED)
            raise

    def record_settings(self, config: Mapping[str, Any], sections: Sections = MappingProxyType({})) -> None:
        """Record the configuration of a run that starts; TensorBoard gets a row of its HPARAMS page.

        Args:
            config: section → setting → value, and `algorithm`; it goes out without its secrets.
            sections: of the algorithm's configuration.
        """
        shown = without_secrets(config)
        if self._events:
            self._events.settings(shown, sections)
        for delivery in self._deliveries:
            delivery.settings(shown)

    def resume_settings(self, config: Mapping[str, Any], *, changed: bool) -> None:
        """Record the configuration of a run that resumes, and send trackers the steps that they lack.

        Args:
            config: section → setting → value, and `algorithm`; it goes out without its secrets.
            changed: whether the steps that are made again may differ from those that trackers hold.
        """
        before = self._run.read_evaluation().get("before") or {}
        first = {f"eval/{name}": value for name, value in (before.get("metrics") or {}).items()}
        stored = [{"step": before.get("step", 0), **first}, *self._run.read_metrics()]
        shown = {line["step"]: line["rows"] for line in metrics_file.read(self._run.conversations_file)}
        for delivery in self._deliveries:
            delivery.settings(without_secrets(config))
            for row in stored:
                delivery.scalars(row["step"], _numbers(row))
                delivery.conversations(row["step"], shown.get(row["step"], []))
            if changed and delivery.tracker.last_step > self._start_step:
                _logger.warning(
                    "run.trackers: %s keeps the values of steps %d to %d from before the settings changed",
                    delivery.tracker.name,
                    self._start_step + 1,
                    delivery.tracker.last_step,
                )

    def record(self, row: Mapping[str, Any]) -> None:
        """Write one step.

        Args:
            row: flat tag → number (or text) with `step`; see `RunDirectory.append_metrics`. Trackers get the numbers.

        Raises:
            ValueError: the step is missing, or not above the last one.
        """
        self._run.append_metrics(row)
        values = plain(row)
        self._gauges.set({"step": values["step"], **_numbers(values)})
        if self._events:
            self._events.scalars(values["step"], _numbers(values))
        for delivery in self._deliveries:
            delivery.scalars(values["step"], _numbers(values))

    def record_evaluation(self, step: int, results: Mapping[str, float]) -> None:
        """Write numbers outside of a training step's row, such as the evaluation before the first step.

        A point that an earlier process left there, before it was killed, is not drawn a second time.

        Args:
            step: where trackers draw them; 0 is before training.
            results: full tag (`eval/pass@1`) → number.
        """
        values = _numbers(plain(results))
        self._gauges.set(values)
        if self._events:
            self._events.evaluation(step, values)
        for delivery in self._deliveries:
            delivery.scalars(step, values)

    def record_conversations(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Show conversations: on TensorBoard's text page, tagged `conversations/0` and so on; elsewhere as a table."""
        if self._events:
            self._events.conversations(step, rollouts)
        if self._deliveries:
            rows = conversation_rows(step, rollouts)
            metrics_file.append(self._run.conversations_file, {"step": step, "rows": rows})
            for delivery in self._deliveries:
                delivery.conversations(step, rows)

    def record_summary(self, summary: Mapping[str, Any]) -> None:
        """Send trackers the content of summary.json; TensorBoard has no place for it."""
        for delivery in self._deliveries:
            delivery.summary(plain(summary))

    def close(self, outcome: Outcome = Outcome.FINISHED) -> None:
        """Finish the event file and the tracked runs. A second call does nothing."""
        if self._events:
            self._events.close()
        for delivery in self._deliveries:
            delivery.close(outcome)
        self._deliveries = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {tag: value for tag, value in row.items() if tag != "step" and isinstance(value, (int, float))}
