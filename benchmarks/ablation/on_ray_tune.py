"""The same runs as trials of Ray Tune, which places as many at a time as the cluster has room for."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune

from algorithms.train import metrics_file
from benchmarks.ablation.plan import Job
from benchmarks.ablation.processes import PATIENCE, THREADS, sigterm_as_interrupt, start, stop

Watch = Callable[[Sequence[Job], Mapping[str, int]], None]

# A trial cannot be stopped while it waits.
_LONGEST_WAIT_S = 5.0
_ENDED = "exit_code"
_SHOWN = {"step": "step", "generated_tokens": "throughput/generated_tokens", "pass@1": "eval/pass@1"}


def run_on_tune(jobs: Sequence[Job], *, at_a_time: int, out: Path, watch: Watch) -> dict[str, int]:
    """Run all jobs as one grid of trials; one that fails does not end the others.

    A trial reserves what its run needs, and starts it as a process with a Ray of its own on the trial's machine. The
    cluster is that at RAY_ADDRESS, or else one that lasts as long as this call.

    Args:
        jobs: the runs.
        at_a_time: trials at the same time; 0: as many as there is room for.
        out: the ablation's folder, which every machine must see under this path.
        watch: called again and again with the jobs that run and the exit codes so far, by name.

    Returns:
        Exit codes by the runs' names.

    Raises:
        KeyboardInterrupt: Ctrl-C, once every trial has ended.
    """
    # Else a trial moves into a folder of its own, from where relative paths lead nowhere.
    os.environ.update({"RAY_CHDIR_TO_TRIAL_DIR": "0", **PATIENCE})
    by_name = {job.name: job for job in jobs}
    threads = dict.fromkeys((THREADS, "MKL_NUM_THREADS"), os.environ.get(THREADS, "1"))
    trial = tune.with_parameters(_Trial, jobs=by_name, folder=os.getcwd(), threads=threads)
    overseer = _Overseer(by_name, watch)
    address = os.environ.get("RAY_ADDRESS")
    ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(trial, lambda config: _resources(by_name[_name(config)])),
        param_space={"run": tune.grid_search([{"arm": job.arm, "seed": job.seed} for job in jobs])},
        tune_config=tune.TuneConfig(max_concurrent_trials=at_a_time or None),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(out.resolve()),
            verbose=0,
            callbacks=[overseer],
            # The runs keep their own.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    try:
        with sigterm_as_interrupt():
            tuner.fit()
    finally:
        ray.shutdown()
    if len(overseer.codes) < len(jobs):
        raise KeyboardInterrupt
    return overseer.codes


class _Trial(tune.Trainable):
    """One run, as a process beside the trial's own."""

    def setup(self, config: dict[str, Any], **given: Any) -> None:
        os.chdir(given["folder"])
        self._job: Job = given["jobs"][_name(config)]
        # The run's Ray is not the trial's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = start(self._job, environment | PATIENCE | given["threads"])

    def step(self) -> dict[str, Any]:
        try:
            code = self._process.wait(_LONGEST_WAIT_S)
        except subprocess.TimeoutExpired:
            return self._so_far()
        return {**self._so_far(), _ENDED: code, "done": True}

    def cleanup(self) -> None:
        stop([self._process])

    def _so_far(self) -> dict[str, Any]:
        rows = metrics_file.read(self._job.folder / "metrics.jsonl")
        latest = {tag: value for row in rows for tag, value in row.items()}
        return {name: latest.get(tag) for name, tag in _SHOWN.items()}


class _Overseer(tune.Callback):
    """Reports the trials to `watch`."""

    def __init__(self, by_name: Mapping[str, Job], watch: Watch) -> None:
        self.codes: dict[str, int] = {}
        self._by_name, self._watch = by_name, watch

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._look(trials)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self._look(trials)

    def _look(self, trials: list[Any]) -> None:
        for trial in trials:
            if trial.status == "ERROR":
                self.codes[_name(trial.config)] = 1
            elif trial.status == "TERMINATED" and _ENDED in trial.last_result:
                self.codes[_name(trial.config)] = trial.last_result[_ENDED]
        running = [self._by_name[_name(trial.config)] for trial in trials if trial.status == "RUNNING"]
        self._watch(running, self.codes)


def _name(config: Mapping[str, Any]) -> str:
    return f"{config['run']['arm']}-{config['run']['seed']}"


def _resources(job: Job) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": job.cpus, **({"GPU": job.gpus} if job.gpus else {})}])
