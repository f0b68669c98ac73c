"""Train a task with several arms and seeds, and compare them at equal steps and at equal generated tokens.

    python -m benchmarks.ablation --arms grpo,r3 --seeds 5 --tokens 250000 --out runs/ablation

Each run is a process and a run directory `OUT/ARM-SEED`. Finished runs are kept, interrupted ones resumed.
`OUT/table.md`, `OUT/results.json` and `OUT/curves.png` are rewritten after every run. More:
docs/guides/ablation.md.
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from algorithms.config.errors import ConfigError
from benchmarks.ablation.arms import ARMS, chosen_arms
from benchmarks.ablation.plan import Job, State, Task, plan, refuse_others, state
from benchmarks.ablation.processes import THREADS, Overview, run_in_parallel
from benchmarks.ablation.results import write_results

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table; returns the exit code."""
    arguments = _arguments(argv)
    try:
        return _run(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes {arguments.out}", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    arms = chosen_arms(arguments.arms, arguments.arm, arguments.arm_settings)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    task = Task(tuple(arguments.config), tuple(arguments.overrides), arguments.tokens)
    jobs = plan(arms, seeds, task, arguments.out)
    refuse_others(jobs)
    if not arguments.table_only:
        _check_gpus(jobs, arguments)
    if not all(job.sections["evaluation"]["interval"] for job in jobs):
        print("note: evaluation.interval: 0: equal steps lie on a straight line from start to end", file=sys.stderr)
    codes: dict[str, int] = {}
    if not arguments.table_only:
        with locked(arguments.out) as lock:
            try:
                codes = _train(jobs, arguments, lock)
            except KeyboardInterrupt:
                write_results(jobs, codes, arguments.out)  # of what has ended since the last one
                raise
    elif not arguments.out.is_dir():
        raise ConfigError(f"--out: {arguments.out} holds no runs; fix: leave --table-only out, or name their folder")
    print(write_results(jobs, codes, arguments.out))
    return FAILED if any(codes.get(job.name) for job in jobs if state(job) is not State.FINISHED) else DONE


def _check_gpus(jobs: Sequence[Job], arguments: argparse.Namespace) -> None:
    """Refuse parallel processes on GPUs: each with a Ray of its own, all would count the same GPUs as theirs."""
    alone = arguments.tune or (arguments.parallel or 1) == 1 or os.environ.get("RAY_ADDRESS")
    needy = next((job for job in jobs if job.gpus), None)
    if needy and not alone:
        raise ConfigError(
            f"--parallel: {arguments.parallel} runs at a time would share the same GPUs, and {needy.name} reserves "
            f"{needy.gpus:g}; fix: --tune, which gives each its own, or --parallel 1"
        )


def _train(jobs: Sequence[Job], arguments: argparse.Namespace, lock: int) -> dict[str, int]:
    """Run unfinished jobs; retry failures that are not the settings' fault once, after all others."""
    codes = _attempt([job for job in jobs if state(job) is not State.FINISHED], jobs, arguments, lock)
    for_good = (DONE, WRONG_INPUT, INTERRUPTED)
    again = [job for job in jobs if codes.get(job.name, DONE) not in for_good and state(job) is not State.FINISHED]
    if again:
        print(f"once more, after a failure: {', '.join(job.name for job in again)}", file=sys.stderr)
        codes |= _attempt(again, jobs, arguments, lock)
    return codes


def _attempt(todo: Sequence[Job], jobs: Sequence[Job], arguments: argparse.Namespace, lock: int) -> dict[str, int]:
    overview = Overview(todo, sum(state(job) is State.FINISHED for job in jobs))
    written = 0

    def watch(running: Sequence[Job], codes: Mapping[str, int]) -> None:
        nonlocal written
        overview.update(running, codes)
        if len(codes) > written:
            written = len(codes)
            write_results(jobs, codes, arguments.out)

    if not todo:
        return {}
    if not arguments.tune:
        return run_in_parallel(todo, at_a_time=arguments.parallel or 1, watch=watch, keep_open=[lock])
    # Imports Ray, which takes seconds.
    from benchmarks.ablation.on_ray_tune import run_on_tune

    return run_on_tune(todo, at_a_time=arguments.parallel or 0, out=arguments.out, watch=watch)


@contextmanager
def locked(out: Path) -> Iterator[int]:
    """Keep a second ablation out of the folder; runs inherit the lock, in case they outlive this process.

    Raises:
        ConfigError: another one is at work there.
    """
    out.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--out: another ablation, or a run of it, is at work in {out}; fix: another folder"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings of all runs")
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file of the task; may be repeated, a later one wins",
    )
    parser.add_argument(
        "--arms",
        type=_names,
        default=["grpo", "r3"],
        help=f"of {', '.join(ARMS)}; the others are compared with the first",
    )
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=BASE:section.key=value,…",
        help="a further arm; may be repeated",
    )
    parser.add_argument(
        "--arm-settings",
        type=Path,
        metavar="FILE",
        help="a YAML file {arm: {section.key: value}}, for example with each arm's own learning rate",
    )
    parser.add_argument("--seeds", type=_positive, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--tokens",
        type=int,
        default=0,
        help="each run ends with the step that brings its generated tokens to this; default: with run.steps",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"), help="folder of the ablation")
    parser.add_argument("--parallel", type=_positive, help="runs at a time; default: 1, with --tune as many as fit")
    parser.add_argument(
        "--tune", action="store_true", help="run on Ray Tune, on the cluster at RAY_ADDRESS or this machine"
    )
    parser.add_argument(
        "--table-only", action="store_true", help="run nothing; write table and curves of the existing runs"
    )
    arguments = parser.parse_intermixed_args(argv)
    _check_cores(parser, arguments)
    return arguments


def _check_cores(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    threads, cores = int(os.environ.get(THREADS) or 1), os.cpu_count() or 1
    if not arguments.tune and (arguments.parallel or 1) * threads > cores:
        parser.error(
            f"--parallel: {arguments.parallel or 1} runs of {threads} threads are too many for {cores} cores; "
            f"fix: --parallel {max(1, cores // threads)}, {THREADS}=1"
        )


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
