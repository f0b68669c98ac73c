"""How soon a killed env runner is replaced, in seconds and in steps, beside its first start.

    python -m benchmarks.recovery [--engine vllm] [--spares 1] [--json FILE]

Trains the embedded model with env runner actors, and kills one of them (SIGKILL) after a step, or while a step updates
the policy. A line for each step says how long it took, how many prompts were completed, and who was ready at its end.
"""

import argparse
import logging
import os
import signal
import threading
import time
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from rich.table import Table

from algorithms.grpo.config import GRPOConfig
from algorithms.rollout.supervisor import WorkerSupervisor
from algorithms.utils.process import prepare
from benchmarks.record import benchmark_parser, given, show

LOOK_S = 0.05
COLUMNS = {
    "first_start_s": ("first start of both runners", "{:.1f} s"),
    "noticed_s": ("loss noticed after", "{:.1f} s"),
    "recovery_s": ("place filled after", "{:.1f} s"),
    "steps_without": ("steps that ended before", "{:.0f}"),
}


class Watch:
    """Notes when a runner is lost, and how many are ready at each look.

    Args:
        supervisor: of the runners.
    """

    def __init__(self, supervisor: WorkerSupervisor) -> None:
        self.supervisor, self.lost_at, self.looks = supervisor, float("inf"), list[tuple[float, int]]()
        self._on_health = supervisor._on_health
        supervisor._on_health = self._note
        threading.Thread(target=self._look, daemon=True).start()

    def _note(self, number: int, healthy: bool) -> None:
        self._on_health(number, healthy)
        if not healthy:
            self.lost_at = min(self.lost_at, time.monotonic())

    def _look(self) -> None:
        while True:
            self.looks.append((time.monotonic(), len(self.supervisor.ready())))
            time.sleep(LOOK_S)


def configuration(arguments: argparse.Namespace) -> GRPOConfig:
    """Return the configuration: the embedded model with a few actors."""
    return (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model="embedded:tiny")
        .env_runners(
            engine=arguments.engine,
            num_env_runners=arguments.runners,
            max_response_tokens=48,
            max_num_seqs=64,
            num_cpus_per_env_runner=0.5,
            num_threads=1,
            spares=arguments.spares,
        )
        .training(lr=1e-4, group_size=8, queries_per_step=arguments.queries)
        .evaluation(data="embedded:heldout", samples=1, k=[1], limit=4)
        .debugging(seed=3)
    )


def time_first_start() -> list[float]:
    """Time how long RLlib's runners take until all of them answer."""
    seconds: list[float] = []
    add_workers = EnvRunnerGroup.add_workers

    def timed(self: EnvRunnerGroup, *arguments: Any, **options: Any) -> None:
        started = time.monotonic()
        add_workers(self, *arguments, **options)
        seconds.append(time.monotonic() - started)

    EnvRunnerGroup.add_workers = timed  # type: ignore[method-assign]
    return seconds


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, kill, and report."""
    starts = time_first_start()
    algorithm: Any = configuration(arguments).build_algo()
    workers = algorithm.rollout_workers
    victim = ray.get(workers.supervisor.runners[1].handle.get_pid.remote())
    while len(workers.supervisor.up()) < arguments.runners + arguments.spares:
        time.sleep(LOOK_S)
    watch, killed_at, ends = Watch(workers.supervisor), 0.0, []

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)

    if arguments.during_update:
        update = algorithm.update_policy

        def update_policy(batch: Any) -> None:
            if algorithm.steps_done == arguments.kill_after:
                kill()
            update(batch)

        algorithm.update_policy = update_policy
    for step in range(1, arguments.steps + 1):
        began = time.monotonic()
        algorithm.train()
        ends.append(time.monotonic())
        record = algorithm.batch.record
        prompts = f"{record['rollout/prompts_completed']:g}/{record['rollout/prompts_expected']:g}"
        seconds = f"{ends[-1] - began:.1f} s, generate {record['time/generate']:.1f}"
        ready = [runner.number for runner in workers.supervisor.ready()]
        print(f"step {step}: {seconds}, prompts {prompts}, ready {ready}", flush=True)
        if step == arguments.kill_after and not arguments.during_update:
            kill()
    filled = (at for at, count in watch.looks if at > watch.lost_at and count == arguments.runners)
    back = next(filled, None)  # None: the places were never all filled
    figures = {
        "first_start_s": starts[0],
        "noticed_s": watch.lost_at - killed_at,
        "recovery_s": back and back - killed_at,
        "steps_without": back and sum(killed_at < end < back for end in ends),
    }
    algorithm.stop()
    return figures


def main() -> None:
    """Measure, and print the figures."""
    parser = benchmark_parser(
        __doc__,
        runners=2,
        spares=0,
        steps=20,
        queries=(48, "queries per step, eight responses each"),
        kill_after=(2, "the step after which the first runner is killed"),
        during_update=(False, "kill it when the next step updates the policy"),
    )
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    arguments = parser.parse_args()
    prepare()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    figures = measure(arguments)
    table = Table("", *(heading for heading, _ in COLUMNS.values()))
    cells = ("never" if figures[name] is None else form.format(figures[name]) for name, (_, form) in COLUMNS.items())
    table.add_row(f"`{given()}`", *cells)
    show([table], arguments, figures)


if __name__ == "__main__":
    main()
