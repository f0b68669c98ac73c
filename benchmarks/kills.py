"""Kill a run at random system calls, three times before it is done; it must become the run that was never killed.

    python -m benchmarks.kills --triples 50 --seed 0
    python -m benchmarks.kills --places 286 109:50 675

A small preloaded library (kill_at.c) counts the calls that change the run's folder, and kills the process with SIGKILL
at the n-th; half of the kills leave half of a write. After each kill the run is resumed. A triple is three kills, whose
places cut the calls of an undisturbed run at random; what is called rarely is drawn more often.

Metrics without times, TensorBoard, conversations, rollouts, history, evaluations and the last checkpoint's weights must
be the undisturbed run's. Exit code 1 if a triple differs: its line has the places, with which `--places` repeats it.
Needs Linux and a C compiler.
"""

import argparse
import contextlib
import json
import math
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks.soaking.checks import troubles
from benchmarks.soaking.command import Command
from benchmarks.soaking.faults import TOO_BUSY
from benchmarks.soaking.processes import of_run

KILLS = 3
STEPS = 4
# A process that has not ended after so many seconds hangs.
LONGEST_S = 1800.0
# So often a process is started again on a machine that is too busy for Ray.
MOST_TOO_BUSY = 8
SETTINGS = (
    "run.seed=4",
    "run.checkpoint_every=1",
    "training.queries_per_step=4",
    "training.group_size=4",
    "training.warmup_steps=0",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
    "evaluation.limit=6",
    "evaluation.interval=2",
    "reflection.min_attempts=1",
    "reflection.threshold=1",
    "reflection.max_share=0.5",
)
# Conversations are files of a run only if another tracker wants them.
_TRACKED = ("run.trackers=[tensorboard,wandb]",)


@dataclass(frozen=True)
class Place:
    """Where a process is killed.

    Args:
        call: its n-th that changes the run's folder, from 1; that call is not made. 0: nowhere.
        share: percent of the bytes that are written first, if the call is a write.
    """

    call: int
    share: int = 0

    @classmethod
    def of(cls, text: str) -> "Place":
        """Read `call` or `call:share`."""
        return cls(*map(int, text.split(":")))

    def __str__(self) -> str:
        return f"{self.call}:{self.share}" if self.share else f"{self.call}"


NOWHERE = Place(0)


@dataclass
class Triple:
    """The kills of a run, and what is wrong with what became of it.

    Args:
        places: where its processes were to be killed.
        calls: the calls that they were killed at, in words.
    """

    number: int
    places: tuple[Place, ...]
    calls: list[str] = field(default_factory=list)
    seconds: float = 0.0
    troubles: list[str] = field(default_factory=list)


class Ended(Exception):
    """A process ended as none may."""


def draw_places(seed: int, number: int, calls: Sequence[str]) -> tuple[Place, ...]:
    """Draw the places of a triple, which cut the calls of a run: a resumed run has at least what is left of them.

    A call on a file that is made n times has a weight of 1/√n at each: most calls write to two kinds of files.
    """
    rng, times = random.Random(f"{seed} {number}"), Counter(calls)
    # The largest of these keys are a weighted sample without replacement (Efraimidis and Spirakis, 2006).
    keys = [rng.random() ** math.sqrt(times[call]) for call in calls]
    cuts = sorted(sorted(range(1, len(calls) + 1), key=lambda call: keys[call - 1])[-KILLS:])
    return tuple(Place(cut - before, rng.choice((0, 50))) for before, cut in zip([0, *cuts[:-1]], cuts, strict=True))


def compile_killer(folder: Path) -> Path:
    """Compile kill_at.c.

    Raises:
        RuntimeError: there is no C compiler, or no Linux.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        raise RuntimeError("needs Linux and a C compiler: cc or gcc")
    library = folder / "kill_at.so"
    source = Path(__file__).with_name("kill_at.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


def killed_at(library: Path, root: Path, log: Path, place: Place) -> dict[str, str]:
    """Return the environment variables of a process that is killed at a place below `root`."""
    return {
        "LD_PRELOAD": str(library),
        "KILL_ROOT": str(root.resolve()),
        "KILL_LOG": str(log),
        "KILL_AT": str(place.call),
        "KILL_SHARE": str(place.share),
    }


@dataclass(frozen=True)
class Sweep:
    """Runs in a folder, one like the other but for their kills.

    Args:
        folder: of the runs, and the library.
        library: that kills.
        steps: of each run.
    """

    folder: Path
    library: Path
    steps: int

    def undisturbed(self) -> tuple[Path, list[str]]:
        """Train; return the run directory and the calls that changed it."""
        command = self._command("undisturbed")
        code, calls = self._live(command, NOWHERE)
        run = command.run_directory()
        if code or run is None:
            raise Ended(f"exit code {code} of the undisturbed run: {command.last_line()}")
        if len(calls) < KILLS:
            raise Ended(f"{len(calls)} calls of the undisturbed run were counted, too few for {KILLS} kills")
        return run, calls

    def triple(self, number: int, places: tuple[Place, ...], reference: Path) -> Triple:
        """Train, kill and resume until the run is done, and compare it with the undisturbed one."""
        one, started, command = Triple(number, places), time.monotonic(), self._command(f"triple{number}")
        try:
            for place in (*places, NOWHERE):
                code, calls = self._live(command, place)
                if code == 0:
                    break
                if code != -signal.SIGKILL or len(calls) != place.call:
                    raise Ended(f"exit code {code} at call {len(calls)}: {command.last_line()}")
                one.calls.append(calls[-1])
            run = command.run_directory()
            if run is None:
                raise Ended("no run")
            one.troubles += troubles(run, self.steps, reference=reference, compared="numbers")
        except (Ended, OSError, ValueError, LookupError, sqlite3.Error) as error:
            one.troubles.append(f"{type(error).__name__}: {error}")
        if not one.troubles:
            shutil.rmtree(command.folder)
        one.seconds = time.monotonic() - started
        return one

    def _command(self, name: str) -> Command:
        tracked = _TRACKED if find_spec("wandb") else ()
        command = Command(self.folder / name, self.steps, [*SETTINGS, *tracked])
        command.folder.mkdir()
        return command

    def _live(self, command: Command, place: Place) -> tuple[int, list[str]]:
        """Run a process until it has ended; return its exit code and its calls."""
        log = self.folder / "calls"
        surroundings = {**killed_at(self.library, command.folder, log, place), "WANDB_MODE": "offline"}
        for _ in range(MOST_TOO_BUSY):
            process = command.start(surroundings)
            try:
                code = process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                raise Ended(f"no end after {LONGEST_S:g} s") from None
            finally:
                for left in of_run(process.pid):
                    with contextlib.suppress(psutil.Error):
                        left.kill()
                process.wait()
            if not TOO_BUSY.fits(code, command.last_line()):
                break
        return code, log.read_text(encoding="utf-8", errors="replace").splitlines()


def _sweep(folder: Path, arguments: argparse.Namespace) -> Iterator[Triple]:
    folder.mkdir(exist_ok=not arguments.folder)
    sweep = Sweep(folder, compile_killer(folder), arguments.steps)
    reference, calls = sweep.undisturbed()
    print(f"undisturbed: {len(calls)} calls that change the run's folder", flush=True)
    for number in range(1, arguments.triples + 1):
        places = arguments.places or draw_places(arguments.seed, number, calls)
        yield sweep.triple(number, tuple(places), reference)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, print a line for each triple, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triples", type=int, default=50, help="runs, each killed three times")
    parser.add_argument("--seed", type=int, default=0, help="seed of the places")
    parser.add_argument(
        "--places", type=Place.of, nargs="+", help="call or call:percent written of each kill, not drawn"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run")
    parser.add_argument("--folder", type=Path, help="new folder, in which runs that differ stay")
    parser.add_argument("--json", type=Path, help="file for the triples")
    arguments = parser.parse_args(argv)
    triples: list[Triple] = []
    with contextlib.nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory() as name:
        started = time.monotonic()
        for triple in _sweep(Path(name), arguments):
            triples.append(triple)
            left = (time.monotonic() - started) / len(triples) * (arguments.triples - len(triples))
            print(f"{in_words(triple)}; {len(triples)}/{arguments.triples}, {left / 60:.0f} min left", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in triples], indent=1) + "\n", encoding="utf-8")
    failed = [one.number for one in triples if one.troubles]
    kills = sum(len(one.calls) for one in triples)
    print(f"{len(triples)} triples, {kills} kills, {len(failed)} differ: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


def in_words(one: Triple) -> str:
    """Say where a triple's processes were killed, and what became of the run."""
    places = ", ".join(f"{place} ({call})" for place, call in zip(one.places, one.calls, strict=False))
    found = "; ".join(one.troubles) or "equal"
    return f"triple {one.number}: killed at {places or 'no call'}; {one.seconds:.0f} s; {found}"


if __name__ == "__main__":
    sys.exit(main())
