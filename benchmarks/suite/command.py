"""The suite's commands: the filter, the sweep, the test, and the table."""

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.train.exit_codes import DONE, FAILED
from benchmarks.ablation.processes import sigterm_as_interrupt, stop, surroundings
from benchmarks.suite import protocol as registered
from benchmarks.suite import tasks
from benchmarks.suite.bases import Spec, make
from benchmarks.suite.jobs import Planned, chosen, key_of, planned
from benchmarks.suite.protocol import Phase, Protocol
from benchmarks.suite.worker import stored, work

_POLL_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    protocol, digest = registered.read()
    if arguments.what == "screen":
        screen(protocol, arguments.out, arguments.parallel)
        return DONE
    phase: Phase = arguments.what
    runs = planned(chosen(tasks.read_screened(registered.SCREENED), protocol, phase), protocol, phase)
    if arguments.table_only:
        report(runs, phase, arguments.records, protocol.tokens, arguments.reference)
        return DONE
    if phase == "test":
        check_registered(protocol)
    if arguments.base:
        spec = _named(arguments.base, runs)
        work(spec, runs[spec], protocol, digest, arguments.out, arguments.records)
        return DONE
    failed = run_all(runs, arguments)
    report(runs, phase, arguments.records, protocol.tokens)
    return FAILED if failed else DONE


def check_registered(protocol: Protocol) -> None:
    """Check that the protocol is committed as it stands, and says that it is registered.

    Raises:
        ConfigError: it is a draft, or has uncommitted changes.
    """
    if protocol.registered is None:
        raise ConfigError(
            f"{registered.FILE}: registered: is null, a draft; fix: date it and commit it before the test"
        )
    changed = subprocess.run(
        ["git", "status", "--porcelain", registered.FILE.name], cwd=registered.FOLDER, capture_output=True, text=True
    )
    if changed.returncode or changed.stdout.strip():
        raise ConfigError(f"{registered.FILE}: is not committed as it is; fix: commit it before the test")


def screen(protocol: Protocol, out: Path, parallel: int) -> None:
    """Filter reasoning-gym's tasks in their order until enough are in, and record every one that was screened."""
    found = tasks.read_screened(registered.SCREENED)
    known = {tasks.plain(one.name) for one in found}
    wanted = sum(protocol.tasks.values())
    names = deque(name for name in tasks.names() if name not in known)
    waiting: deque[Future[list[tasks.Screened]]] = deque()
    # Spawned: a fork would inherit torch's threads.
    with ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        while sum(one.reason is None for one in found) < wanted and (names or waiting):
            while names and len(waiting) < parallel:
                waiting.append(pool.submit(screened, names.popleft(), protocol, out))
            for one in waiting.popleft().result():
                found.append(one)
                inside = sum(one.reason is None for one in found)
                print(f"{one.name}: {one.reason or 'in'} ({inside} of {wanted})", flush=True)
            tasks.write_screened(found, registered.SCREENED)
        for future in waiting:
            future.cancel()


def screened(name: str, protocol: Protocol, out: Path) -> list[tasks.Screened]:
    """Filter one task, with its own defaults and then at levels of its curriculum, up to the first that is in."""
    import torch

    torch.set_num_threads(1)
    found: list[tasks.Screened] = []
    for variant in tasks.variants(name, protocol.filter):
        found.append(_taught(tasks.screen(variant, protocol.filter), protocol, out))
        if found[-1].reason is None:
            break
    return found


def _taught(one: tasks.Screened, protocol: Protocol, out: Path) -> tasks.Screened:
    """Leave a task out that a base does not learn, or that it learns with no checkpoint at some difficulty."""
    if one.reason is not None:
        return one
    spec, recipe = Spec(one.name, "none", 0), protocol.recipe
    folder = out / "bases" / spec.name
    made = make(spec, recipe, protocol.filter, folder, wanted=protocol.difficulties, gives_up=True)
    if made.best < recipe.learnable:
        return replace(one, reason=f"not learned: pass@1 {made.best:.2f} after {made.curve[-1][0]} steps")
    if missed := [difficulty for difficulty in protocol.difficulties if difficulty not in made.taken]:
        return replace(one, reason=f"its base passes over {', '.join(missed)}")
    return one


def run_all(runs: Mapping[Spec, Sequence[Planned]], arguments: argparse.Namespace) -> list[str]:
    """Run a process per base, a number at a time; return those that failed. A failure does not end the others."""
    total, began = sum(map(len, runs.values())), time.monotonic()
    before = count = _recorded(runs, arguments.records)
    waiting = deque(_first_replicates_first(runs))
    running: dict[Spec, subprocess.Popen[bytes]] = {}
    failed: list[str] = []
    with sigterm_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < arguments.parallel:
                    spec = waiting.popleft()
                    running[spec] = _start(spec, arguments)
                time.sleep(_POLL_S)
                for spec in [spec for spec, process in running.items() if process.poll() is not None]:
                    if running.pop(spec).returncode:
                        failed.append(spec.name)
                        print(f"{spec.name}: failed, see {arguments.out}/logs/{spec.name}.log", flush=True)
                if (now := _recorded(runs, arguments.records)) != count:
                    count = now
                    left = (time.monotonic() - began) / (count - before) * (total - count)
                    print(f"{count} of {total} runs, about {timedelta(seconds=round(left))} left", flush=True)
        except BaseException:
            stop(list(running.values()))
            raise
    return failed


def report(
    runs: Mapping[Spec, Sequence[Planned]],
    phase: Phase,
    file: Path,
    tokens: int,
    reference: str = registered.REFERENCE,
) -> None:
    """Print the results of the phase's runs."""
    keys = {run.key for specs in runs.values() for run in specs}
    found = [record for record in stored(file) if key_of(record) in keys]
    if phase == "sweep":
        print("\n".join(rates(found)))
    elif found:
        page(file, len(keys), tokens, reference)


def page(file: Path, planned: int, tokens: int, reference: str = registered.REFERENCE) -> None:
    """Print the report of the test, and draw its figures once all runs are in.

    Raises:
        ConfigError: no run is of the reference arm.
    """
    from benchmarks.suite import figure, records, table

    runs = records.read(file)
    arms = {run.arm for run in runs}
    if reference not in arms:
        raise ConfigError(f"--reference: no run is of {reference}; fix: one of {', '.join(sorted(arms))}")
    print(table.report(runs, planned, tokens=tokens, reference=reference))
    if reference == registered.REFERENCE and sum(one.phase == "test" for one in runs) == planned:
        for draw, name in ((figure.draw_curves, "suite.png"), (figure.draw_profiles, "suite-profiles.png")):
            print(draw(runs, registered.FIGURES / name, tokens=tokens))


def rates(found: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield a line per arm: mean last pass@1 of each rate, the best rate first."""
    by_arm: dict[object, dict[object, list[float]]] = {}
    for record in found:
        final = record["final"]
        assert isinstance(final, dict)
        by_arm.setdefault(record["arm"], {}).setdefault(record["lr"], []).append(final["pass@1"])
    for arm, of_rates in by_arm.items():
        means = Counter({rate: float(np.mean(values)) for rate, values in of_rates.items()})
        yield f"{arm}: " + ", ".join(f"{rate} {mean:.3f} ({len(of_rates[rate])})" for rate, mean in means.most_common())


def _start(spec: Spec, arguments: argparse.Namespace) -> "subprocess.Popen[bytes]":
    log = arguments.out / "logs" / f"{spec.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.suite", arguments.what, "--base", spec.label]
    command += ["--out", str(arguments.out), "--records", str(arguments.records)]
    with log.open("ab") as out:
        return subprocess.Popen(
            command, env=surroundings(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


def _recorded(runs: Mapping[Spec, Sequence[Planned]], records: Path) -> int:
    keys = {run.key for specs in runs.values() for run in specs}
    return len(keys & {key_of(record) for record in stored(records)})


def _first_replicates_first(runs: Mapping[Spec, Sequence[Planned]]) -> list[Spec]:
    """Give every task a base before any has the next: what is there after a part of the time spans all tasks."""
    return sorted(runs, key=lambda spec: spec.replicate)


def _named(text: str, runs: Mapping[Spec, Sequence[Planned]]) -> Spec:
    by_name = {spec.label: spec for spec in runs}
    if text not in by_name:
        raise ConfigError(f"--base: there is no {text}; fix: one of {', '.join(by_name)}")
    return by_name[text]
