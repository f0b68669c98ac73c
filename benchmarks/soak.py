"""Train the embedded model through the command line while things go wrong, and see that nothing was lost.

    python -m benchmarks.soak --minutes 60
    python -m benchmarks.soak --minutes 4 --steps 12 --every 40

Rounds alternate between a run in one process, in which every number must be that of the undisturbed run, and a run
with two env runners, whose accuracy must be the undisturbed run's within noise. Faults come at random: SIGKILL of
every process, SIGTERM, Ctrl-C, a full disk where a small one may be mounted, and an env runner killed or stopped.
After each that ends the run it is resumed. Exit code 1 if anything is not as it should be.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soaking import faults
from benchmarks.soaking.checks import accuracy, troubles
from benchmarks.soaking.memory import MemoryWatch

SETTINGS = ["run.seed=7", "run.checkpoint_every=2", "evaluation.interval=0"]
REMOTE = ["env_runners.num_env_runners=2", "env_runners.timeout_s=60", "env_runners.num_cpus_per_env_runner=0.5"]
DISK_MIB = 400
# A run that is not done after so many seconds without a fault hangs.
LONGEST_S = 3600.0
POLL_S = 0.25
# How runs end that are resumed: on a full disk, and where Ray did not start in the time that it gives itself.
NO_SPACE, TOO_BUSY = "No space left", "Ray did not start"


@dataclass
class Round:
    """A run that was disturbed until it was done."""

    kind: str
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    too_busy: int = 0
    accuracy: float = float("nan")
    growth_mib: float = float("nan")
    troubles: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="rounds begin until then, after the undisturbed run")
    parser.add_argument("--steps", type=int, default=80, help="of each run")
    parser.add_argument("--every", type=float, default=90, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--folder", type=Path, help="where the runs go; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args(argv)
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        reference, growth = _undisturbed(folder / "undisturbed", arguments.steps)
        print(f"undisturbed: pass@1 {accuracy(reference):.3f}; memory grew by at most {growth:.0f} MiB", flush=True)
        deadline = time.monotonic() + 60 * arguments.minutes
        rounds: list[Round] = []
        while time.monotonic() < deadline:
            kind = "two runners" if len(rounds) % 2 else "one process"
            with faults.small_disk(folder / f"round{len(rounds)}", DISK_MIB) as own_disk:
                rounds.append(_disturbed(folder / f"round{len(rounds)}", kind, own_disk, reference, rng, arguments))
            _print_round(len(rounds), rounds[-1])
    failed = [one for one in rounds if one.troubles]
    happened = sum(one.faults.total() for one in rounds)
    print(f"{len(rounds)} rounds, {happened} faults, {len(failed)} rounds failed")
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in rounds], indent=1), encoding="utf-8")
    return 1 if failed else 0


def _undisturbed(folder: Path, steps: int) -> tuple[Path, float]:
    """Its run directory, and by how many MiB its process grew."""
    folder.mkdir()
    run, again, memory = folder / "whole", None, MemoryWatch(steps)
    while True:
        process = _start(folder, steps, "whole", [], again)
        while process.poll() is None:
            time.sleep(POLL_S)
            memory.look(process.pid, [], _steps_made(folder))
        if process.returncode == 0:
            return run, memory.most_growth_mib
        if TOO_BUSY not in (last := _last_line(_said(folder, "whole"))):
            raise RuntimeError(f"the undisturbed run failed: {last}")
        again = ["--resume", str(run)]


def _disturbed(
    folder: Path, kind: str, own_disk: bool, reference: Path, rng: random.Random, arguments: argparse.Namespace
) -> Round:
    remote = kind == "two runners"
    possible = {**faults.ENDING, **(faults.DISK if own_disk else {}), **(faults.RUNNERS if remote else {})}
    one, started, memory = Round(kind), time.monotonic(), MemoryWatch(arguments.steps)
    process = _start(folder, arguments.steps, "soaked", REMOTE if remote else [])
    while (code := _run_until_fault(process, folder, possible, one, memory, rng, arguments.every)) != 0:
        last = _last_line(_said(folder, "soaked"))
        one.too_busy += TOO_BUSY in last
        if "Traceback" in last or (code == 1 and not any(said in last for said in (NO_SPACE, TOO_BUSY))):
            one.troubles.append(f"exit code {code}: {last}")
            break
        one.resumed += 1
        run = _run_directory(folder)
        again = ["--resume", str(run)] if run else None
        process = _start(folder, arguments.steps, "soaked", REMOTE if remote else [], again)
    one.seconds, one.growth_mib = time.monotonic() - started, memory.most_growth_mib
    run = _run_directory(folder)
    if run and not one.troubles:
        one.troubles = troubles(run, arguments.steps, reference=reference, exact=not remote)
        one.accuracy = accuracy(run)
    one.troubles += memory.troubles
    return one


def _run_until_fault(
    process: subprocess.Popen[str],
    folder: Path,
    possible: dict[str, faults.Fault],
    one: Round,
    memory: MemoryWatch,
    rng: random.Random,
    every_s: float,
) -> int:
    """Let a process run, with a fault now and then, until it has ended; returns its exit code."""
    run = faults.Running(process, folder)
    hangs_at, next_fault = time.monotonic() + LONGEST_S, time.monotonic() + rng.expovariate(1 / every_s)
    while process.poll() is None:
        time.sleep(POLL_S)
        memory.look(process.pid, run.runners(), _steps_made(folder))
        if time.monotonic() > hangs_at:
            one.troubles.append(f"no end after {LONGEST_S:g} s")
            faults.kill(run)
        elif time.monotonic() > next_fault:
            name = rng.choice(sorted(possible))
            one.faults[name] += 1
            possible[name](run)
            next_fault = time.monotonic() + rng.expovariate(1 / every_s)
    return process.wait()


def _start(
    folder: Path, steps: int, name: str, settings: Sequence[str], arguments: Sequence[str] | None = None
) -> subprocess.Popen[str]:
    """The real command; what it says goes to a file, as a pipe that nobody reads would stop it."""
    first = [*SETTINGS, f"run.steps={steps}", f"run.dir={folder}", f"run.name={name}", *settings]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with _said(folder, name).open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "algorithms.r3_grpo", *(arguments or first)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def _run_directory(folder: Path) -> Path | None:
    """The run; a process that ended before it had written its configuration left none, and the next begins again."""
    return next((file.parent for file in folder.glob("soaked*/config.yaml")), None)


def _steps_made(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/metrics.jsonl"))
    return 0


def _said(folder: Path, name: str) -> Path:
    return folder.parent / f"{folder.name}-{name}.err"


def _last_line(said: Path) -> str:
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""


def _print_round(number: int, one: Round) -> None:
    happened = ", ".join(f"{count} × {name}" for name, count in sorted(one.faults.items())) or "none"
    print(
        f"round {number}: {one.kind}, {one.seconds:.0f} s; faults: {happened}; resumed {one.resumed} times, "
        f"{one.too_busy} of them as the machine was too busy for Ray; "
        f"pass@1 {one.accuracy:.3f}; memory grew by at most {one.growth_mib:.0f} MiB; "
        f"{'; '.join(one.troubles) or 'nothing lost'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
