"""TensorBoard: event files in the run's own folder, and the columns and the row of its HPARAMS page."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from algorithms.config.schema import Sections
from algorithms.config.schema import hyperparameters as marked_hyperparameters
from algorithms.config.sections import RunSettings
from algorithms.grpo.registry import all_sections
from algorithms.rollout.conversation import conversation
from algorithms.rollout.types import Rollout
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.conversations import conversation_markdown

HYPERPARAMETER_METRICS = (
    "eval/pass@1",
    "reward/mean",
    "groups/solve_none",
    "response/truncated",
    "response/mean_tokens",
)


def hyperparameter_names(sections: Sections = MappingProxyType({})) -> list[str]:
    """Return the columns of TensorBoard's HPARAMS page: `algorithm`, and the settings marked with `hparam`.

    They are the same for every algorithm: TensorBoard takes the columns of all runs from one of them.

    Args:
        sections: further ones, such as a user's mechanism's.
    """
    return ["algorithm", *marked_hyperparameters({"run": RunSettings, **all_sections(), **sections})]


def hyperparameters(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Return the values of `names` in a resolved configuration.

    Args:
        config: section → setting → value, and `algorithm`.
        names: see `hyperparameter_names`.

    Returns:
        What is set; a mechanism that the algorithm does not have is switched off.
    """
    values: dict[str, bool | int | float | str] = {name: False for name in names if name.endswith(".enabled")}
    for name in names:
        section, _, key = name.partition(".")
        value = (config.get(section) or {}).get(key) if key else config.get(section)
        if isinstance(value, bool | int | float | str):
            values[name] = value
    return values


class EventFiles:
    """Write TensorBoard's event files. Each call has reached the file when it returns.

    Args:
        run: whose folder they lie in.
        start_step: the last step that is already recorded; what earlier processes wrote for later steps is hidden.
    """

    def __init__(self, run: RunDirectory, start_step: int) -> None:
        # Takes a second to import, and `--help` or a configuration error has no use for it.
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._start_step = start_step
        _wait_for_a_later_name(run.path)
        self._events = SummaryWriter(str(run.path), purge_step=start_step + 1)

    def settings(self, config: Mapping[str, Any], sections: Sections) -> None:
        """Make the run a row of the HPARAMS page; a resumed run has it already."""
        from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

        names = hyperparameter_names(sections)
        columns = hparams_config_pb([HParam(name) for name in names], [Metric(tag) for tag in HYPERPARAMETER_METRICS])
        row = hparams_pb(hyperparameters(config, names), trial_id=self._run.name)
        for summary in (columns, row):
            self._events.file_writer.add_summary(summary)  # type: ignore[attr-defined]  # torch types it as None
        self._events.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's numbers by tag."""
        for tag, value in values.items():
            self._events.add_scalar(tag, value, step)
        self._events.flush()

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers that belong to no step's row; a point that an earlier process left is not drawn again."""
        drawn = self._drawn(step) if step <= self._start_step else frozenset()
        self.scalars(step, {tag: value for tag, value in values.items() if tag not in drawn})

    def _drawn(self, step: int) -> Collection[str]:
        """Tags that have a point at this step."""
        from tensorboard.backend.event_processing import event_accumulator
        from tensorboard.util import tb_logging

        tb_logging.get_logger().setLevel(logging.ERROR)  # it warns of each process that resumed
        events = event_accumulator.EventAccumulator(str(self._run.path), {event_accumulator.SCALARS: 0})
        events.Reload()
        return {tag for tag in events.Tags()["scalars"] if any(event.step == step for event in events.Scalars(tag))}

    def conversations(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Show conversations on the text page, tagged `conversations/0` and so on."""
        for number, rollout in enumerate(rollouts):
            heading = f"{rollout.uid}, {rollout.context}: reward {rollout.reward:g}, {rollout.verdict}"
            text = conversation_markdown(conversation(rollout), heading=heading)
            self._events.add_text(f"conversations/{number}", text, step)
        self._events.flush()

    def close(self) -> None:
        """Finish the event file. A second call does nothing."""
        self._events.close()


def _wait_for_a_later_name(path: Path) -> None:
    """Let the second pass in which the last event file was made.

    TensorBoard reads event files in the order of their names. A name begins with a whole second and ends with a count
    without leading zeros: of two files of one second, the tenth comes before the ninth, and the purge of the earlier
    process hides points of the later one.
    """
    now = time.time()
    if any(path.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(int(now) + 1 - now)
