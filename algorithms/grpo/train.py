"""The training script's loop: evaluate, train, evaluate, and leave a run directory that can be read and resumed."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from algorithms.grpo.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from algorithms.grpo.checkpoint_errors import CheckpointError
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.config_files import load
from algorithms.grpo.ray_session import start_ray
from algorithms.grpo.settings import RunSettings
from algorithms.runs.closing_table import print_closing_table
from algorithms.runs.curves import draw_curves
from algorithms.runs.progress import Progress
from algorithms.runs.recorder import Recorder
from algorithms.runs.rollout_files import write_rollouts
from algorithms.runs.run_directory import RunDirectory


def train(config: GRPOConfig, run: RunSettings, *, name: str) -> RunDirectory:
    """Train from the start in a new run directory; returns it."""
    resolved = {"algorithm": name, "run": run.model_dump(), **config.to_sections()}
    directory = RunDirectory.create(run.dir, run.name or name, yaml.safe_dump(resolved, sort_keys=False))
    print(f"run directory: {directory.path}")
    session = _Session(config, run, directory)
    session.evaluate_before()
    session.run_steps()
    session.close()
    return directory


def resume(path: Path, config_class: type[GRPOConfig], overrides: Sequence[str]) -> RunDirectory:
    """Go on with a run from its last checkpoint, as if it had not stopped.

    Raises:
        CheckpointError: `path` is not a run, or has no whole checkpoint.
    """
    try:
        directory = RunDirectory.open(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    config, run = load(directory.path / "config.yaml", overrides, config_class)
    checkpoint = latest_checkpoint(directory.path / "checkpoints")
    session = _Session(config, run, directory, checkpoint)
    session.run_steps()
    session.close()
    return directory


class _Session:
    """One process's share of a run: an algorithm, and where its results go."""

    def __init__(
        self, config: GRPOConfig, run: RunSettings, directory: RunDirectory, checkpoint: Path | None = None
    ) -> None:
        self.config, self.run, self.directory = config, run, directory
        start_ray(config)
        self.algo = _build(config, run.seed)
        self.evaluations: dict[str, Any] = {}
        self.earlier_wall_s = 0.0
        if checkpoint is not None:
            load_checkpoint(self.algo, checkpoint)
            directory.truncate_after(self.algo.steps_done)
            self._recall_evaluations()
            print(f"resumed {directory.path} after step {self.algo.steps_done}")
        self.started = time.monotonic()
        self.recorder = Recorder(directory, self.algo.steps_done)
        self.last_checkpoint = self.algo.steps_done

    def evaluate_before(self) -> None:
        """Held-out accuracy of the model as it came."""
        self._evaluate("before")

    def run_steps(self) -> None:
        """Train up to `run.steps`; an interrupt leaves a checkpoint behind."""
        with Progress(self.run.steps, self.algo.steps_done) as progress:
            try:
                while self.algo.steps_done < self.run.steps:
                    result = self.algo.train()
                    self._record(result)
                    progress.update(self.algo.record | {"step": self.algo.steps_done})
                    every = self.run.checkpoint_every
                    if every and self.algo.steps_done % every == 0:
                        self._checkpoint()
            except KeyboardInterrupt:
                self._checkpoint()
                print(f"stopped after step {self.algo.steps_done}; go on with --resume {self.directory.path}")
                raise

    def close(self) -> None:
        """Evaluate, write the summary, the curves and the last checkpoint, and print the closing table."""
        self._checkpoint()
        self._evaluate("after")
        self.recorder.close()
        before, after = self.evaluations.get("before"), self.evaluations["after"]
        summary = {
            "algorithm": type(self.algo).__name__,
            "steps": self.algo.steps_done,
            "generated_tokens": self.algo.generated_tokens,
            "wall_s": round(self.earlier_wall_s + time.monotonic() - self.started, 1),
            "eval": {"before": _without_details(before), "after": _without_details(after)},
        }
        self.directory.write_summary(summary)
        draw_curves(self.directory.read_metrics(), summary, self.directory.curves_file)
        print_closing_table(summary, self.directory.path, _per_problem(before), _per_problem(after))
        self.algo.stop()
