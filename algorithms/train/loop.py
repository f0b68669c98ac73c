"""The training loop of the command: evaluate, train, evaluate, and leave a run directory to read and resume."""

import contextlib
import functools
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from ray.rllib.utils.metrics import EVALUATION_RESULTS

from algorithms.config.files import to_yaml
from algorithms.config.placement import WAYS
from algorithms.config.sections import RunSettings
from algorithms.grpo.base import BaseAlgorithm
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.group import LearnerDied
from algorithms.preflight.check import warn_of_cluster
from algorithms.preflight.ray_session import needs_ray
from algorithms.train.checkpoints import Checkpoints, load_checkpoint
from algorithms.train.closing_table import print_closing_table, problems_named
from algorithms.train.copies import Copies
from algorithms.train.curves import draw_curves
from algorithms.train.evaluations import measure, naming_the_evaluation, to_stored, to_tags, was_missed
from algorithms.train.exit_codes import DIRECTORY, is_supervised, report_to_supervisor
from algorithms.train.ray_watch import RayWatch, start_interruptible_ray
from algorithms.train.recorder import Recorder, record_step, step_row
from algorithms.train.remote_copy import check_copy
from algorithms.train.rollout_files import TokenPieces
from algorithms.train.run_directory import SIDES, RunDirectory, is_in_job_copy
from algorithms.train.start_from import start_from
from algorithms.train.stop_conditions.base import RunEnd
from algorithms.train.stopping import InterruptBetweenSteps, interrupt_on_sigterm
from algorithms.train.stored_run import StoredRun, changed_measurement, changed_training, reading_history
from algorithms.train.trackers.tracker import Outcome
from algorithms.utils.errors import InputError
from algorithms.utils.process import native_stderr_held_back
from algorithms.utils.progress import Progress
from algorithms.utils.provenance import code_commit, code_version, machine
from algorithms.utils.starting import ShownStart
from r3env.printable import printable

# Where evaluation.json keeps an evaluation before training that no longer compares with the one after.
OTHER_SETTINGS = "before_with_other_settings"

_logger = logging.getLogger(__name__)


def train(config: GRPOConfig, run: RunSettings, *, name: str, numbered: bool = True) -> RunDirectory:
    """Train from the start in a new run directory, under another name if `numbered` and its is taken; returns it."""
    settings = to_yaml(config, run, algorithm=name)
    directory = RunDirectory.create(run.dir, run.name or name, settings, run.mode, numbered=numbered)
    taken = f" ({run.name} is taken)" if run.name and directory.path.name != run.name else ""
    print(printable(f"run directory: {directory.path}{taken}"), file=sys.stderr)
    if is_in_job_copy(directory.path):
        _logger.warning(
            "run.dir: %s is in the job's copy of the working directory, which Ray deletes; fix: an absolute run.dir "
            "that every machine sees",
            directory.path,
        )
    with directory.locked(), RayWatch(f"--resume {directory.path}", directory, starting=needs_ray(config)):
        try:
            check_copy(run, directory, begun=False)
            _start_ray(config)
        except BaseException:  # nothing was begun
            shutil.rmtree(directory.path, ignore_errors=True)
            raise
        report_to_supervisor(DIRECTORY, str(directory.path))
        session = _Session(config, run, directory)
        with session.recorded():
            session.record_settings()
            start_from(session.algo, run, directory)
            session.evaluate("before")
            session.copies.take()
            session.run_steps()
            session.close()
    return directory


def resume(stored: StoredRun, config: GRPOConfig, run: RunSettings, *, name: str) -> RunDirectory:
    """Resume a run from its checkpoint, with the metrics of an uninterrupted run; without one, start it again.

    Settings that were replaced on the command line are the run's own from now on.

    Raises:
        CheckpointError: the checkpoint does not fit the settings, or the history is damaged.
    """
    check_copy(run, stored.directory, begun=True)
    with RayWatch(f"--resume {stored.directory.path}", stored.directory, starting=needs_ray(config)):
        session = _Session(config, run, stored.directory)
        with session.recorded():
            session.resume_from(stored.checkpoint, to_yaml(config, run, algorithm=name))
            session.copies.take()  # another machine's process that still copies this run there stops
            session.run_steps()
            session.close()
    return stored.directory


class _Session:
    """One process's share of a run: an algorithm, and where its results go."""

    def __init__(self, config: GRPOConfig, run: RunSettings, directory: RunDirectory) -> None:
        self.run, self.directory = run, directory
        self.checkpoints = Checkpoints(
            directory.checkpoints_folder,
            keep=run.keep_checkpoints,
            best_by=run.best_metric,
            rows=directory.read_metrics,
        )
        self.copies = Copies(directory, run.copy_to)
        self.problems = problems_named(config.evaluation_settings.data)
        self.started = time.monotonic()
        self.algo = _build(config, run.seed)
        self.algo.prove_learner()  # before an evaluation takes its time
        print(f"weights: {WAYS[self.algo.rollout_workers.weight_transfer]}", file=sys.stderr)
        self.algo.keeps_entropies = run.save_rollouts and run.save_tokens
        self.evaluations: dict[str, dict[str, Any]] = {}
        with reading_history(directory):
            self.algo.keep_state_in(directory.path)
        self.wall_s_before = 0.0
        self.metrics: dict[str, float] = {}
        self.end = RunEnd(run, config)
        self.recorded_until = 0
        self.recorded_step: int | None = None

    def resume_from(self, checkpoint: Path | None, config_yaml: str) -> None:
        """Restore the state of the checkpoint, or of the start, and drop what was written later: it is repeated."""
        with reading_history(self.directory):
            if checkpoint is not None:
                with self.checkpoints.hidden_after(checkpoint):
                    load_checkpoint(self.algo, checkpoint)
            else:
                self.algo.start_again()
                start_from(self.algo, self.run, self.directory)
        self.recorded_until = self.algo.steps_done
        before = self.directory.config_file.read_text(encoding="utf-8")
        self._restore_results(changed_measurement(before, config_yaml))
        self.directory.write_config(config_yaml)
        self.checkpoints.delete_after(self.algo.steps_done)
        repeated = self.directory.truncate_after(self.algo.steps_done)
        if checkpoint is None:
            self.record_settings()
        self.recorder.resume_settings(self._settings(), changed=changed_training(before, config_yaml))
        report_to_supervisor(DIRECTORY, str(self.directory.path))
        again = f"; later steps of metrics.jsonl, which are repeated: {repeated}" if repeated else ""
        print(printable(f"resumed {self.directory.path} after step {self.algo.steps_done}{again}"), file=sys.stderr)
        if "before" not in self.evaluations and not self.algo.steps_done:
            self.evaluate("before")
        self._repeat_missed_evaluation(before)

    @functools.cached_property
    def recorder(self) -> Recorder:
        """Where metrics go; opened for the first one, after a resume has truncated the files."""
        return Recorder(self.directory, self.recorded_until, self.run.trackers)

    @functools.cached_property
    def pieces(self) -> TokenPieces:
        """Cuts responses at their tokens, with a cache over all steps."""
        return TokenPieces(self.algo.tokenizer)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Finish what trackers are sent, and the run's copy, however the block ends."""
        begins_again = False
        try:
            yield
        except BaseException as error:
            begins_again = is_supervised() and isinstance(error, Exception) and not isinstance(error, InputError)
            if "recorder" in vars(self):
                self.recorder.close(Outcome.of(error))
            raise
        finally:
            if not begins_again:
                self.copies.finish()

    def record_settings(self) -> None:
        """Record the settings of a run that starts."""
        self.recorder.record_settings(self._settings(), self.algo.config.sections)

    def _settings(self) -> dict[str, Any]:
        return dict(yaml.safe_load(self.directory.config_file.read_text(encoding="utf-8")))

    def run_steps(self) -> None:
        """Train up to `run.steps`, `run.max_generated_tokens` or a condition of `run.stop`, whichever is first.

        The end of the run, an interrupt, an error in a step that has changed nothing yet, and one in the evaluation
        after a step, leave a checkpoint. In the middle of a step it holds the state at the step's beginning.
        """
        budget = self.run.max_generated_tokens
        with (
            Progress(self.run.steps, self.algo.steps_done, budget, self.algo.generated_tokens) as progress,
            InterruptBetweenSteps(self._may_stop_now) as interrupt,
        ):
            try:
                while not (self._ended_by() or interrupt.requested):
                    progress.update(self._step())
            except KeyboardInterrupt:
                if not self._can_be_saved:
                    raise
            except Exception as error:
                if self._can_be_saved and not isinstance(error, LearnerDied):
                    with interrupt.saving():
                        self._save_beside_an_error()
                raise
            with interrupt.saving():
                self._save()
            if interrupt.requested:
                progress.message(
                    f"stopped after step {self.algo.steps_done}; resume with --resume {self.directory.path}"
                )
                raise KeyboardInterrupt

    def close(self) -> None:
        """Evaluate, write summary and curves, and print the closing table."""
        self.algo.abandon_rollouts()
        with naming_the_evaluation("after training", self._how_to_resume()):
            self.evaluate("after")
        sides = {side: self.evaluations.get(side, {}) for side in SIDES}
        summary = {
            "algorithm": type(self.algo).__name__,
            "steps": self.algo.steps_done,
            "ended_by": self._ended_by(),
            "generated_tokens": self.algo.generated_tokens,
            "wall_s": round(self._wall_s(), 1),
            "code": {"version": code_version(), "commit": code_commit()},
            "machine": machine(),
            "eval": {side: evaluation.get("metrics", {}) for side, evaluation in sides.items()},
        }
        self.directory.write_summary(summary)
        self.recorder.record_summary(summary)
        self.recorder.close()
        draw_curves(self.directory.read_metrics(), summary, self.directory.curves_file, self.problems)
        self.copies.take()
        correct = [evaluation.get("correct", {}) for evaluation in sides.values()]
        print_closing_table(summary, self.directory.path, *correct, problems=self.problems)
        self.algo.stop()

    def _ended_by(self) -> str | None:
        return self.end.reached(self.algo.steps_done, self.algo.generated_tokens)

    def _may_stop_now(self) -> bool:
        """Whether an interrupt may raise where the run is: not while a step is recorded, or changes the policy."""
        return self.algo.can_be_saved if self.algo.in_step else self.algo.evaluating

    @property
    def _can_be_saved(self) -> bool:
        """Whether a checkpoint loses nothing: within a step before it changes anything, and after one on record."""
        if self.algo.in_step:
            return self.algo.can_be_saved
        return self.recorded_step == self.algo.steps_done

    def _step(self) -> dict[str, Any]:
        before = self.algo.steps_done
        try:
            result = self.algo.train()
        except BaseException:
            if self.algo.in_step or self.algo.steps_done == before:
                raise
            # The step has ended, and the evaluation after it has not.
            self._record({})
            with naming_the_evaluation(f"after step {self.algo.steps_done}", self._how_to_resume()):
                raise
        row = self._record(result.get(EVALUATION_RESULTS) or {})
        if self.run.checkpoint_every and row["step"] % self.run.checkpoint_every == 0:
            self._save()
        return row

    def _record(self, evaluation: Mapping[str, Any]) -> dict[str, Any]:
        """Record the step that has ended; return its row."""
        row = step_row(self.algo, evaluation, self._wall_s())
        pieces = self.pieces if self.run.save_rollouts and self.run.save_tokens else None
        record_step(self.algo, row, self.run, self.recorder, self.directory, pieces)
        self.metrics = {name: value for name, value in row.items() if isinstance(value, int | float)}
        self.recorded_step = self.algo.steps_done
        self.end.observe(row)
        return row

    def _save(self) -> None:
        self.directory.commit(self.algo.steps_done)
        self.checkpoints.save(self.algo, self.metrics)
        self.copies.take()

    def _save_beside_an_error(self) -> None:
        """Write a checkpoint if that is possible: the error that ends the run is what matters."""
        try:
            self._save()
        except Exception as failure:  # a full disk, which may be the error as well
            _logger.warning("no checkpoint could be written: %s", failure)
        else:
            print(
                printable(f"stopped by an error after step {self.algo.steps_done}; {self._how_to_resume()}"),
                file=sys.stderr,
            )

    def _how_to_resume(self) -> str:
        return f"resume with --resume {self.directory.path}"

    def evaluate(self, side: str) -> None:
        """Measure the held-out accuracy before or after training, and keep it."""
        is_in_row = self.algo.evaluated_at == self.algo.steps_done  # the interval has done it
        evaluation = self.algo.evaluation if is_in_row else measure(self.algo, f"{side} training", self.problems)
        assert evaluation is not None
        self.evaluations[side] = to_stored(self.algo, evaluation)
        if not is_in_row:
            self.recorder.record_evaluation(self.algo.steps_done, to_tags(evaluation.metrics()))
        # Last: a resumed run takes what is in there for done.
        self.directory.write_evaluation(self.evaluations | {"wall_s": self._wall_s()})

    def _repeat_missed_evaluation(self, config_yaml: str) -> None:
        """Make the evaluation that failed after the checkpoint's step, and add it to that step's row."""
        step, interval = self.algo.steps_done, self.algo.config.evaluation_settings.interval
        if self._ended_by() or not interval or not was_missed(self.directory.read_metrics(), step, config_yaml):
            return
        with naming_the_evaluation(f"after step {step}", self._how_to_resume()):
            tags = to_tags(measure(self.algo, f"after step {step}", self.problems).metrics())
        self.directory.add_to_last_metrics(tags)
        self.recorder.record_evaluation(step, tags)
        self.end.replay(self.directory.read_metrics())

    def _restore_results(self, changed: Sequence[str]) -> None:
        """Restore the evaluation before training and the time spent; delete an end that no longer holds.

        Args:
            changed: settings, since that evaluation, that make it another measurement.
        """
        rows = [row for row in self.directory.read_metrics() if row["step"] <= self.algo.steps_done]
        self.wall_s_before = float(rows[-1].get("run/wall_s") or 0.0) if rows else 0.0
        self.end.replay(rows)
        stored = self.directory.read_evaluation()
        self.evaluations = {side: stored[side] for side in ("before", OTHER_SETTINGS) if side in stored}
        if changed and "before" in self.evaluations:
            self._set_aside(changed)
        ended_here = self._ended_by() is not None and stored.get("after", {}).get("step") == self.algo.steps_done
        if ended_here and not changed:
            return
        self.directory.delete_results()
        if stored:
            self.directory.write_evaluation(self.evaluations | {"wall_s": self._wall_s()})

    def _set_aside(self, changed: Sequence[str]) -> None:
        """Set the evaluation before training aside: it is repeated where possible, else compared with nothing."""
        before = self.evaluations.pop("before")
        if not self.algo.steps_done:
            self.recorded_until = -1  # TensorBoard hides its points, which are at step 0
            return
        self.evaluations[OTHER_SETTINGS] = before
        _logger.warning(
            "the evaluation before training was made with other settings (%s): evaluation.json keeps it as "
            "before_with_other_settings, and nothing is compared with it",
            ", ".join(changed),
        )

    def _wall_s(self) -> float:
        return self.wall_s_before + time.monotonic() - self.started


def _start_ray(config: GRPOConfig) -> None:
    if start_interruptible_ray(config):
        warn_of_cluster(config)


def _build(config: GRPOConfig, seed: int) -> BaseAlgorithm:
    _start_ray(config)
    with native_stderr_held_back() as seen, ShownStart(stream=seen):
        algo = cast(BaseAlgorithm, config.debugging(seed=seed).build_checked())
    interrupt_on_sigterm()
    return algo
