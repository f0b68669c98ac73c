"""Train the embedded model through the command line while things go wrong, and see that nothing was lost.

    python -m benchmarks.soak --minutes 60
    python -m benchmarks.soak --minutes 4 --steps 12 --every 40

Rounds alternate between a run in one process, in which every number must be that of the undisturbed run, and a run
with two env runners and a learner of their own, whose accuracy must be the undisturbed run's within noise. Faults come
at random: SIGKILL of every process, SIGTERM once or twice, Ctrl-C, a full disk where a small one may be mounted, and an
env runner killed or stopped. After each that ends the run it is resumed; an end that no fault explains is a find, as is
a process that grows. Exit code 1 if anything is not as it should be.
"""

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soaking import faults
from benchmarks.soaking.checks import accuracy, troubles
from benchmarks.soaking.command import Command
from benchmarks.soaking.memory import SETTLING_STEPS, in_words
from benchmarks.soaking.rounds import Disturbance, Round, run_round

SETTINGS = ["run.seed=7", "run.checkpoint_every=2"]
REMOTE = [
    "env_runners.num_env_runners=2",
    "env_runners.timeout_s=60",
    "env_runners.num_cpus_per_env_runner=0.5",
    "learners.num_learners=1",
    "learners.num_cpus_per_learner=0.5",
]
DISK_MIB = 400


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
        undisturbed = Command(folder / "undisturbed", arguments.steps, _settings(arguments.steps))
        undisturbed.folder.mkdir()
        rounds = [run_round(undisturbed, "undisturbed")]
        reference = _check(rounds[0], undisturbed, None)
        _print_round(0, rounds[0])
        deadline = time.monotonic() + 60 * arguments.minutes
        while reference and time.monotonic() < deadline:
            remote = len(rounds) % 2 == 0
            command = Command(
                folder / f"round{len(rounds)}",
                arguments.steps,
                _settings(arguments.steps) + (REMOTE if remote else []),
            )
            with faults.small_disk(command.folder, DISK_MIB) as own_disk:
                disturbance = Disturbance(faults.possible(own_disk, remote), arguments.every, rng)
                rounds.append(run_round(command, "two runners, a learner" if remote else "one process", disturbance))
                _check(rounds[-1], command, reference, exact=not remote)
            _print_round(len(rounds) - 1, rounds[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in rounds], indent=1), encoding="utf-8")
    return _close(rounds)


def _settings(steps: int) -> list[str]:
    """Evaluations come at an interval too, the last at the last step where that divides the steps."""
    return [*SETTINGS, f"evaluation.interval={min(SETTLING_STEPS, max(1, steps // 2))}"]


def _check(one: Round, command: Command, reference: Path | None, exact: bool = True) -> Path | None:
    """Look through what a finished run left; returns its directory, None if there is none that is finished.

    Without a reference it is its own: the undisturbed run.
    """
    run = command.run_directory()
    if run is None or not one.done:
        one.troubles += ["no finished run"]
        return None
    try:
        one.troubles += troubles(run, command.steps, reference=reference or run, exact=exact)
        one.accuracy = accuracy(run)
    except (OSError, ValueError, LookupError, sqlite3.Error) as error:
        one.troubles.append(f"cannot be checked: {type(error).__name__}: {error}")
        return None
    return run


def _print_round(number: int, one: Round) -> None:
    happened = ", ".join(f"{count} × {name}" for name, count in sorted(one.faults.items())) or "none"
    print(
        f"round {number}: {one.kind}, {one.seconds:.0f} s; faults: {happened}; resumed {one.resumed} times, "
        f"{one.too_busy} of them as the machine was too busy for Ray; pass@1 {one.accuracy:.3f}; "
        f"{in_words(one.growths_mib, one.unjudged)}; {'; '.join(one.troubles) or 'nothing lost'}",
        flush=True,
    )


def _close(rounds: Sequence[Round]) -> int:
    """Print what the rounds come to, the undisturbed one among them, and return the exit code."""
    failed = [one for one in rounds if one.troubles]
    judged = [one for one in rounds if one.growths_mib]
    ever = {kind for one in rounds for kind in one.growths_mib}
    never = sorted({kind for one in rounds for kind in one.unjudged} - ever)
    happened = sum(one.faults.total() for one in rounds)
    print(f"the undisturbed run and {len(rounds) - 1} rounds, {happened} faults; {len(failed)} failed")
    print(f"memory was judged in {len(judged)} of {len(rounds)}; never that of: {', '.join(never) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
