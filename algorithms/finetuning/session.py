"""One run of a supervised start: evaluate, train, save, evaluate; from its beginning or resumed."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.base import BaseConfig
from algorithms.config.machine import WITHOUT_ADAPTER
from algorithms.config.sections import RunSettings
from algorithms.evaluation.sampling import (
    evaluate_policy,
    held_out_sample,
    make_truncator,
)
from algorithms.finetuning import trainer as trainers
from algorithms.finetuning.config import SFTConfig
from algorithms.finetuning.rows import Rows
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Sampling, Split
from algorithms.rollout.workers import inference_workers
from algorithms.train.checkpoints import Checkpoints
from algorithms.train.closing_table import print_closing_table, problems_named
from algorithms.train.evaluations import to_tags
from algorithms.train.ray_watch import start_interruptible_ray
from algorithms.train.recorder import Recorder
from algorithms.train.run_directory import SIDES, RunDirectory
from algorithms.train.stopping import InterruptBetweenSteps, interrupt_on_sigterm
from algorithms.train.trackers.tracker import Outcome
from algorithms.utils.progress import Counter, Progress
from algorithms.utils.provenance import code_commit, code_version, machine
from r3env.printable import printable

TRAINER = "trainer"  # folder of TRL's checkpoints, gone when the run has ended
RESULT = "model"  # a link to the last checkpoint's model


class Session:
    """One process's share of a run.

    Args:
        config: the configuration, in which no setting asks for learners.
        run: section `run`.
        directory: of the run, locked.
        rows: to train on and to measure.
        start_ray: starts Ray where engines are actors.
    """

    def __init__(
        self,
        config: SFTConfig,
        run: RunSettings,
        directory: RunDirectory,
        rows: Rows,
        start_ray: Callable[[BaseConfig], object] = start_interruptible_ray,
    ) -> None:
        self.start_ray = start_ray
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
            self._store("before", self._measure(self.config, "before", 0))
        recorder = Recorder(self.directory, self._step(), self.run.trackers)
        try:
            self._record_start(recorder)
            if self.result is None:
                self.result = self._train(recorder)
                trainers.free_memory()
            if "after" not in self.evaluations:
                trained = of_model(self.config, str(self.result / RESULT))
                self._store("after", self._measure(trained, "after", self._step()))
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
            callback = trainers.TrainerEvents(log.start, log.step, log.held_out, commit, lambda: interrupt.requested)
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

    def _measure(self, config: SFTConfig, side: str, step: int) -> dict[str, Any]:
        return measure(config, side, step, self.run.seed, self.start_ray)

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
            "machine": machine(),
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
        print(printable(f"to train it further: rl_module.model={link}"))


class StepLog:
    """Records each step, and shows it with the speed and the time that is left.

    Args:
        directory: of the run; time and tokens go on from its last step.
        recorder: writes metrics.jsonl and to trackers.
    """

    def __init__(self, directory: RunDirectory, recorder: Recorder) -> None:
        self._directory, self._recorder = directory, recorder
        last: dict[str, Any] = next(reversed(directory.read_metrics()), {})
        self._tokens_before = self._tokens = float(last.get("sft/tokens", 0.0))
        self._last = time.monotonic()
        self._started = self._last - float(last.get("run/wall_s", 0.0))
        self._progress: Progress | None = None

    def start(self, steps: int, done: int) -> None:
        """Show the progress of so many steps, of which some are done."""
        self._progress = Progress(steps, done)
        self._last = time.monotonic()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and show a step."""
        now = time.monotonic()
        tokens, seconds = self._tokens_before + metrics["sft/tokens"], now - self._last
        speed = (tokens - self._tokens) / seconds if seconds else 0.0
        self._last, self._tokens = now, tokens
        times = {"sft/tokens_per_s": speed, "time/step": seconds, "run/wall_s": now - self._started}
        row = {"step": step, **metrics, "sft/tokens": tokens, **times}
        self._recorder.record(row)
        if self._progress:
            self._progress.update(row)

    def held_out(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add an evaluation between steps to the step's row."""
        tags = to_tags(metrics)
        self._directory.add_to_last_metrics(tags)
        self._recorder.record_evaluation(step, tags)
        self._last = time.monotonic()
        self.message(f"step {step}: held-out loss {metrics['loss']:.3f}, entropy {metrics['entropy']:.3f}")

    def message(self, text: str) -> None:
        """Print a line of its own."""
        if self._progress:
            self._progress.message(text)

    def close(self) -> None:
        """Leave the last line on the terminal."""
        if self._progress:
            self._progress.close()


def measure(
    config: SFTConfig, side: str, step: int, seed: int, start_ray: Callable[[BaseConfig], object]
) -> dict[str, Any]:
    """Sample answers to the held-out problems, and return what evaluation.json keeps of them.

    Args:
        config: names the model.
        side: `before` or `after`.
        step: of the model.
        seed: of the run.
        start_ray: starts Ray where engines are actors.
    """
    settings, module = config.evaluation_settings, config.rl_module_settings
    with environment_makers(config)[Split.EVALUATION]() as environment:
        queries: Any = environment.unwrapped
        uids = list(queries.uids)
        tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        truncator = make_truncator(config, tokenizer, environment, context_length(module))
        count = len(held_out_sample(uids, settings.limit))
        title = (
            f"evaluating {side} training: {count} {problems_named(settings.data)} problems × {settings.samples} answers"
        )
        with inference_workers(config, start_ray) as workers, Counter(title) as counter:
            evaluation = evaluate_policy(
                lambda requests: workers.rollout(requests, counter.update),
                uids,
                settings,
                Sampling.of(config.env_runners_settings),
                seed,
                truncator,
            )
        return {
            "step": step,
            "metrics": evaluation.metrics(),
            "correct": evaluation.share_correct(),
            "levels": {uid: level for uid in evaluation.uids if (level := queries.query(uid).level)},
        }


def of_model(config: SFTConfig, folder: str) -> SFTConfig:
    """Return the configuration with another model, a folder of whole weights."""
    copy: SFTConfig = config.copy(copy_frozen=False)
    copy.apply({"rl_module": {"model": folder, "revision": None, **WITHOUT_ADAPTER}})
    return copy
