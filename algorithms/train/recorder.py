"""Writes a step's numbers to metrics.jsonl and TensorBoard at once."""

import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from algorithms.config.schema import Sections
from algorithms.config.schema import hyperparameters as marked_hyperparameters
from algorithms.config.sections import RunSettings
from algorithms.grpo.registry import all_sections
from algorithms.rollout.conversation import conversation
from algorithms.rollout.types import Rollout
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.files import plain


class Recorder:
    """The run's log. Use it as a context manager, or call `close`.

    Args:
        run: where metrics.jsonl and the event files go.
        start_step: the last step that is already recorded; 0 for a new run. TensorBoard hides what an earlier
            process wrote for later steps. (metrics.jsonl is cut by `RunDirectory.truncate_after`.)
    """

    def __init__(self, run: RunDirectory, start_step: int = 0) -> None:
        # Takes a second to import, and `--help` or a configuration error has no use for it.
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._start_step = start_step
        _wait_for_a_later_name(run.path)
        self._events = SummaryWriter(str(run.path), purge_step=start_step + 1)

    def record_settings(self, config: Mapping[str, Any], sections: Sections = MappingProxyType({})) -> None:
        """Make the run a row of TensorBoard's HPARAMS page, its metrics the last values of their curves.

        Call it when a run starts, not when it resumes: the row is there already.

        Args:
            config: section → setting → value, and `algorithm`.
            sections: of the algorithm's configuration.
        """
        from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb

        names = hyperparameter_names(sections)
        columns = hparams_config_pb([HParam(name) for name in names], [Metric(tag) for tag in HYPERPARAMETER_METRICS])
        row = hparams_pb(hyperparameters(config, names), trial_id=self._run.name)
        for summary in (columns, row):
            self._events.file_writer.add_summary(summary)  # type: ignore[attr-defined]  # torch types it as None
        self._events.flush()

    def record(self, row: Mapping[str, Any]) -> None:
        """Write one step.

        Args:
            row: flat tag → number (or text) with `step`; see `RunDirectory.append_metrics`. TensorBoard gets
                the numbers.

        Raises:
            ValueError: the step is missing, or not above the last one.
        """
        self._run.append_metrics(row)
        values = plain(row)
        for tag, value in values.items():
            if tag != "step" and isinstance(value, (int, float)):
                self._events.add_scalar(tag, value, values["step"])
        self._events.flush()

    def record_evaluation(self, step: int, results: Mapping[str, float]) -> None:
        """Write numbers that belong to no training step's row, such as the evaluation before the first step.

        A point that an earlier process left there, before it was killed, is not drawn a second time.

        Args:
            step: where TensorBoard draws them; 0 is before training.
            results: full tag (`eval/pass@1`) → number.
        """
        drawn = self._drawn(step) if step <= self._start_step else frozenset()
        for tag, value in plain(results).items():
            if isinstance(value, (int, float)) and tag not in drawn:
                self._events.add_scalar(tag, value, step)
        self._events.flush()

    def _drawn(self, step: int) -> Collection[str]:
        """Tags that have a point at this step."""
        from tensorboard.backend.event_processing import event_accumulator
        from tensorboard.util import tb_logging

        tb_logging.get_logger().setLevel(logging.ERROR)  # it warns of each process that resumed
        events = event_accumulator.EventAccumulator(str(self._run.path), {event_accumulator.SCALARS: 0})
        events.Reload()
        return {tag for tag in events.Tags()["scalars"] if any(event.step == step for event in events.Scalars(tag))}

    def record_conversations(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Show conversations on TensorBoard's text page, tagged `conversations/0` and so on."""
        for number, rollout in enumerate(rollouts):
            heading = f"{rollout.uid}, {rollout.context}: reward {rollout.reward:g}, {rollout.verdict}"
            text = conversation_markdown(conversation(rollout), heading=heading)
            self._events.add_text(f"conversations/{number}", text, step)
        self._events.flush()

    def close(self) -> None:
        """Finish the event file. A second call does nothing."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_for_a_later_name(path: Path) -> None:
    """Let the second pass in which the last event file was made.

    TensorBoard reads event files in the order of their names. A name begins with a whole second and ends with a count
    without leading zeros: of two files of one second, the tenth comes before the ninth, and the purge of the earlier
    process hides points of the later one.
    """
    now = time.time()
    if any(path.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(int(now) + 1 - now)


MAX_CHARACTERS = 20_000


def conversation_markdown(messages: Sequence[Mapping[str, str]], *, heading: str = "") -> str:
    """Render turns for TensorBoard's text page.

    Args:
        messages: `role` and `content` of each turn.
        heading: a line above the first turn.

    Returns:
        Markdown in which nothing of the contents acts as markup. A turn beyond 20,000 characters loses its
        middle.
    """
    parts = [f"**{literal(heading)}**"] if heading else []
    for message in messages:
        parts += [f"***{literal(message['role'])}***", literal(_shortened(message["content"]))]
    return "\n\n".join(parts)


def literal(text: str) -> str:
    """Escape text for Markdown: no character acts as markup, line breaks and indentation stay visible."""
    lines = text.encode("utf-8", "replace").decode("utf-8").split("\n")
    return "<br>".join(_literal_line(line) for line in lines)


def _literal_line(line: str) -> str:
    # Character references pass through Markdown untouched: no list of what its markup is can go stale.
    return re.sub(r"[^\w ]|_|^ +| {2,}", lambda found: "".join(f"&#{ord(letter)};" for letter in found[0]), line)


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


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
