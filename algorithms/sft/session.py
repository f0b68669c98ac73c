"""One run of a supervised start: evaluate, train, save, evaluate; from its beginning or resumed."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.sections import RunSettings
from algorithms.sft import trainer as trainers
from algorithms.sft.config import SFTConfig
from algorithms.sft.held_out import measure, of_model
from algorithms.sft.log import StepLog
from algorithms.sft.rows import Rows
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.closing_table import print_closing_table, problems_named
from algorithms.train.evaluations import to_tags
from algorithms.train.interrupts import InterruptBetweenSteps, interrupt_on_sigterm
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import SIDES, RunDirectory
from algorithms.train.trackers.tracker import Outcome
from algorithms.utils.provenance import code_commit, code_version

TRAINER = "trainer"  # folder of TRL's checkpoints, gone when the run has ended
RESULT = "model"  # a link to the last checkpoint's model


class Session:
    """One process's share of a run.

    Args:
        config: the configuration, in which no setting asks for learners.
        run: section `run`.
        directory: of the run, locked.
        rows: to train on and to measure.
    """

    def __init__(self, config: SFTConfig, run: RunSettings, directory: RunDirectory, rows: Rows) -> None:
        self.config, self.run, self.directory, self.rows = config, run, directory, rows
        self.folder = directory.path / TRAINER
        self.checkpoint = trainers.newest_checkpoint(self.folder)
        self.result = Checkpoints(directory.checkpoints_folder).newest()
        self.evaluations: dict[str, dict[str, Any]] = directory.read_evaluation()

    def run_all(self) -> None:
        """Do what is missing: a run that was stopped continues where it was."""
        interrupt_on_sigterm()
        if self.result is None:
            self.directory.truncate_after(self._step())
        if "before" not in self.evaluations:
            self._store("before", measure(self.config, "before", 0, self.run.seed))
        recorder = Recorder(self.directory, self._step(), self.run.trackers)
        try:
            self._record_start(recorder)
            if self.result is None:
                self.result = self._train(recorder)
                trainers.free_memory()
            if "after" not in self.evaluations:
                trained = of_model(self.config, str(self.result / RESULT))
                self._store("after", measure(trained, "after", self._step(), self.run.seed))
            self._add("after", trainers.result_metrics(self.result))
            summary = self._summary()
            recorder.record_evaluation(self._step(), to_tags(self.evaluations["after"]["metrics"]))
            recorder.record_summary(summary)
        except BaseException as error:
            recorder.close(Outcome.of(error))
            raise
        recorder.close()
        self._close(summary)

    def _step(self) -> int:
        """Return the last step that is done."""
        done = self.result or self.checkpoint
        return trainers.step_of(done) if done else 0

    def _record_start(self, recorder: Recorder) -> None:
        settings = dict(yaml.safe_load(self.directory.config_file.read_text(encoding="utf-8")))
        if self._step():
            recorder.resume_settings(settings, changed=False)
        else:
            recorder.record_settings(settings, self.config.sections)
            recorder.record_evaluation(0, to_tags(self.evaluations["before"]["metrics"]))

    def _train(self, recorder: Recorder) -> Path:
        """Train to the end; return the folder of the result."""
        log = StepLog(self.directory, recorder)
        # Steps are short: a signal waits for the end of one, and finds it saved.
        with InterruptBetweenSteps(lambda: False) as interrupt:
            commit = self.directory.commit
            callback = trainers.Reporter(log.start, log.step, log.held_out, commit, lambda: interrupt.requested)
            parts = (self.config, self.run, self.folder, self.rows.train, self.rows.held_out, callback)
            trainer = trainers.make_trainer(*parts)
            if self.checkpoint is None:
                self._add("before", trainers.held_out_metrics(trainer))
            try:
                trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
            finally:
                log.close()
            step = trainer.state.global_step
            if interrupt.requested and step < trainer.state.max_steps:
                log.message(f"stopped after step {step}; resume with --resume {self.directory.path}")
                raise KeyboardInterrupt
            with interrupt.saving():
                metrics = trainers.held_out_metrics(trainer)
                self.directory.commit(step)
                result = trainers.save_result(trainer, self.config, self.directory.checkpoints_folder, metrics)
            if interrupt.requested:
                log.message(f"stopped after training; resume with --resume {self.directory.path}")
                raise KeyboardInterrupt
        return result

    def _store(self, side: str, evaluation: dict[str, Any]) -> None:
        self.evaluations[side] = evaluation
        self._add(side, {})

    def _add(self, side: str, metrics: Mapping[str, float]) -> None:
        """Add metrics to an evaluation, and write all of them."""
        self.evaluations[side]["metrics"] |= metrics
        self.directory.write_evaluation(self.evaluations)

    def _summary(self) -> dict[str, Any]:
        rows = self.directory.read_metrics()
        return {
            "algorithm": "SFT",
            "steps": self._step(),
            "rows": len(self.rows.train),
            "wall_s": round(float(rows[-1]["run/wall_s"]), 1) if rows else 0.0,
            "code": {"version": code_version(), "commit": code_commit()},
            "eval": {side: self.evaluations[side]["metrics"] for side in SIDES},
        }

    def _close(self, summary: dict[str, Any]) -> None:
        """Write the summary, link to the result, and print what came of it."""
        assert self.result is not None
        self.directory.write_summary(summary)
        link = self.directory.path / RESULT
        link.unlink(missing_ok=True)
        link.symlink_to((self.result / RESULT).relative_to(self.directory.path))
        shutil.rmtree(self.folder, ignore_errors=True)
        correct = [self.evaluations[side]["correct"] for side in SIDES]
        print_closing_table(
            summary, self.directory.path, *correct, problems=problems_named(self.config.evaluation_settings.data)
        )
        before, after = (summary["eval"][side] for side in SIDES)
        for name in ("loss", "entropy"):
            if name in before and name in after:
                print(f"{name} of held-out solutions: {before[name]:.3f} → {after[name]:.3f} nats per token")
        print(f"to train it further: rl_module.model={link}")
