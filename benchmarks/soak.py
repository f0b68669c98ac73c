"""Train the embedded model through the command line under faults, and check that nothing is lost.

    python -m benchmarks.soak --minutes 60
    python -m benchmarks.soak --minutes 4 --steps 12 --every 40

Rounds take these in turn:

- a run in one process: every number must be that of the undisturbed run;
- a run with two env runners and a learner of their own: its accuracy must be the undisturbed run's within noise;
- runs whose policy calls a tool, or talks to agents over the endpoint: all files must be whole.

Faults come at random:

- SIGKILL of every process, SIGTERM once or twice, Ctrl-C;
- an env runner killed or stopped for good (SIGSTOP), Ray's control process, a learner or a tool's process stopped for
  good, and any process stopped for seconds;
- a full disk and a full /dev/shm, where small ones may be mounted;
- idle and hostile connections to the endpoint of agents.

After each that ends the run it is resumed, sometimes with a damaged file, which must be refused and has a way out. An
end that no fault explains is an error, as is a process that grows. Exit code 1 on any error.
"""

import argparse
import itertools
import json
import math
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soaking import faults
from benchmarks.soaking.checks import accuracy, troubles
from benchmarks.soaking.command import Command, own_memory
from benchmarks.soaking.kinds import Compared, kinds
from benchmarks.soaking.memory import SETTLING_STEPS, in_words
from benchmarks.soaking.rounds import Disturbance, Round, run_round

SETTINGS = ["run.seed=7", "run.checkpoint_every=2"]
DISK_MIB = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="start rounds for so long, after the undisturbed run")
    parser.add_argument("--steps", type=int, default=80, help="steps of each run")
    parser.add_argument("--every", type=float, default=90, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--folder", type=Path, help="folder of the runs; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        rounds = _soak(Path(name), arguments, random.Random(arguments.seed))
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in rounds], indent=1), encoding="utf-8")
    return _close(rounds)


def _soak(folder: Path, arguments: argparse.Namespace, rng: random.Random) -> list[Round]:
    """Run rounds until the time is over; before the first of a task its undisturbed run."""
    undisturbed: dict[str, Path] = {}
    rounds: list[Round] = []
    deadline = math.inf
    for number, kind in enumerate(itertools.cycle(kinds(folder))):
        if time.monotonic() >= deadline:
            break
        settings = [*_settings(arguments.steps), *kind.settings]
        if kind.task not in undisturbed:
            alone = Command(folder / f"undisturbed-{kind.task}", arguments.steps, settings, own_memory())
            alone.folder.mkdir()
            rounds.append(run_round(alone, f"{kind.name}, undisturbed"))
            reference = _check(rounds[-1], alone, None, "files")
            _print_round(len(rounds) - 1, rounds[-1])
            if reference is None:
                break
            undisturbed[kind.task] = reference
        deadline = min(deadline, time.monotonic() + 60 * arguments.minutes)
        command = Command(folder / f"round{number}", arguments.steps, settings, own_memory())
        with faults.small_disk(command.folder, DISK_MIB) as own_disk:
            disturbance = Disturbance(faults.possible(own_disk, kind), arguments.every, rng)
            rounds.append(run_round(command, kind.name, disturbance))
            _check(rounds[-1], command, undisturbed[kind.task], kind.compared)
        _print_round(len(rounds) - 1, rounds[-1])
    return rounds


def _settings(steps: int) -> list[str]:
    """Return the settings, with evaluations at an interval, if possible also at the last step."""
    return [*SETTINGS, f"evaluation.interval={min(SETTLING_STEPS, max(1, steps // 2))}"]


def _check(one: Round, command: Command, reference: Path | None, compared: Compared) -> Path | None:
    """Check a finished run's files; return its directory, None if no run is finished.

    Without a reference it is its own: the undisturbed run.
    """
    run = command.run_directory()
    if run is None or not one.done:
        one.troubles += ["no finished run"]
        return None
    try:
        one.troubles += troubles(run, command.steps, reference=reference or run, compared=compared)
        one.accuracy = accuracy(run)
    except (OSError, ValueError, LookupError, sqlite3.Error) as error:
        one.troubles.append(f"cannot be checked: {type(error).__name__}: {error}")
        return None
    return run


def _print_round(number: int, one: Round) -> None:
    happened = ", ".join(f"{count} × {name}" for name, count in sorted(one.faults.items())) or "none"
    print(
        f"round {number}: {one.kind}, {one.seconds:.0f} s; faults: {happened}; "
        f"damaged: {', '.join(one.damaged) or 'nothing'}; resumed {one.resumed} times, "
        f"{one.too_busy} of them as the machine was too busy for Ray; pass@1 {one.accuracy:.3f}; "
        f"{in_words(one.growths_mib, one.unjudged)}; {'; '.join(one.troubles) or 'nothing lost'}",
        flush=True,
    )


def _close(rounds: Sequence[Round]) -> int:
    """Print the results of the rounds, the undisturbed ones included, and return the exit code."""
    failed = [one for one in rounds if one.troubles]
    judged = [one for one in rounds if one.growths_mib]
    ever = {kind for one in rounds for kind in one.growths_mib}
    never = sorted({kind for one in rounds for kind in one.unjudged} - ever)
    happened = sum(one.faults.total() for one in rounds)
    print(f"{len(rounds)} rounds, undisturbed ones among them, {happened} faults; {len(failed)} failed")
    print(f"memory was judged in {len(judged)} of {len(rounds)}; never that of: {', '.join(never) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
