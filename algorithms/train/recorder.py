"""Record a step: its numbers in metrics.jsonl, in Ray's gauges and with every tracker of the run, and its rollouts."""

import logging
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from algorithms.config.schema import Sections
from algorithms.config.secrets import without_secrets
from algorithms.config.sections import RunSettings
from algorithms.grpo.base import BaseAlgorithm
from algorithms.rollout.types import Prompt, Rollout, Split
from algorithms.train import metrics_file
from algorithms.train.evaluations import to_tags
from algorithms.train.rollout_files import TokenPieces, rollout_rows, sample_conversations, write_rollouts
from algorithms.train.run_directory import RunDirectory
from algorithms.train.trackers.conversations import conversation_rows
from algorithms.train.trackers.registry import TENSORBOARD, open_tracker, without_tensorboard
from algorithms.train.trackers.tensorboard import EventFiles
from algorithms.train.trackers.tracker import Delivery, Outcome
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
            for name in without_tensorboard(trackers):
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


# Tag → what the gauge says of itself.
WATCHED: Mapping[str, str] = MappingProxyType(
    {
        "step": "training steps done",
        "reward/mean": "mean reward of the fresh responses",
        "reward/correct": "share of fresh responses that are correct",
        "eval/pass@1": "pass@1 on held-out problems, at the last evaluation",
        "groups/zero_advantage": "share of responses with an advantage of 0",
        "groups/solve_all": "share of groups whose responses are all correct",
        "groups/solve_none": "share of groups whose responses are all incorrect",
        "response/mean_tokens": "mean length of the fresh responses, in tokens",
        "response/truncated": "share of fresh responses that were truncated at the length limit",
        "policy/loss": "loss",
        "policy/entropy": "mean entropy of the next token, in nats",
        "policy/kl": "KL from the initial model, in nats per token",
        "policy/grad_norm": "norm of the gradient before clipping",
        "policy/clip_fraction": "share of tokens whose gradient was clipped",
        "policy/logp_mismatch_mean": "mean difference between engine and learner log-probs, in nats",
        "policy/skipped_steps": "optimizer steps skipped in the last step",
        "grading/timeouts": "responses whose grading timed out in the last step",
        "grading/errors": "responses whose grading failed in the last step",
        "rollout/environment_errors": "episodes ended by an exception in the last step",
        "rollout/runner_restarts": "env runners lost and replaced in this run",
        "rollout/policy_lag": "steps between the oldest sampling policy and the trained one",
        "throughput/response_tokens_per_s": "fresh response tokens per second",
        "throughput/learner_tokens_per_s": "tokens per second that the learners process",
        "throughput/mfu": "share of the learners' peak FLOP/s that they reach",
        "throughput/idle_share": "share of time in which engines did not generate",
        "time/step": "seconds of the last step",
        "time/generate": "seconds of generation in the last step",
        "time/update": "seconds of optimizer steps in the last step",
        "time/transfer": "seconds of weight sync in the last step",
    }
)


class Gauges:
    """Gauges of one run, labeled with its name; none without Ray.

    Args:
        run: the run's name.
    """

    def __init__(self, run: str) -> None:
        self._labels = {"run": run}
        self._gauges: dict[str, Any] = {}

    def set(self, values: Mapping[str, float]) -> None:
        """Set the gauges of those metrics that are watched; Ray exports them after its next report, in seconds."""
        import ray

        if ray.is_initialized():
            for tag in WATCHED.keys() & values.keys():
                self._gauge(tag).set(values[tag], self._labels)

    def _gauge(self, tag: str) -> Any:
        from ray.util.metrics import Gauge

        if tag not in self._gauges:
            self._gauges[tag] = Gauge(gauge_name(tag), description=WATCHED[tag], tag_keys=("run",))
        return self._gauges[tag]


def gauge_name(tag: str) -> str:
    """Return a tag's gauge: `eval/pass@1` becomes `r3_grpo_eval_pass_at_1`, which Ray exports with `ray_` before it."""
    return "r3_grpo_" + re.sub(r"\W", "_", tag.replace("@", "_at_"))


def step_row(algo: BaseAlgorithm, evaluation: Mapping[str, Any], wall_s: float) -> dict[str, Any]:
    """Return the row of the step that has ended: flat tag → number or text.

    Args:
        algo: that made the step.
        evaluation: metrics of the evaluation after it; empty where there was none.
        wall_s: seconds that the run has taken so far.
    """
    row = {"step": algo.steps_done, **algo.batch.record, "run/wall_s": wall_s}
    return row | to_tags(evaluation)


def record_step(
    algo: BaseAlgorithm,
    row: Mapping[str, Any],
    run: RunSettings,
    recorder: Recorder,
    directory: RunDirectory,
    pieces: TokenPieces | None,
) -> None:
    """Write the step that has ended: its row, its conversations and, with `run.save_rollouts`, its rollouts."""
    step, groups = algo.steps_done, algo.batch.groups
    if run.save_rollouts:
        rows = rollout_rows(step, groups, algo.tokenizer, pieces, lambda prompt: reference_answer(algo, prompt))
        write_rollouts(directory.rollout_file(step), rows)
    recorder.record(row)
    recorder.record_conversations(step, sample_conversations(groups, run.log_conversations, algo.tokenizer))


def reference_answer(algo: BaseAlgorithm, prompt: Prompt) -> str:
    """Return the reference answer to a prompt of training, in the form of the query that was posed."""
    environment = algo.environments[Split.TRAIN].unwrapped
    query = environment.query(prompt.uid)
    return str((environment.variant(query, prompt.variant) if prompt.variant else query).answer)
