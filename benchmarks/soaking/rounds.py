"""A run that is disturbed and resumed until it is done."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soaking.command import Command
from benchmarks.soaking.damage import Damage, damage_and_resume
from benchmarks.soaking.faults import TOO_BUSY, Fault, Running, explained, kill
from benchmarks.soaking.memory import MemoryWatch

# A process that has not ended after so many seconds hangs.
LONGEST_S = 3600.0
POLL_S = 0.25
# After so many processes in a row that made no step further than those before, the next has no fault.
MOST_IN_VAIN = 8


@dataclass
class Round:
    """The faults of a run, and its errors."""

    kind: str
    done: bool = False
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)
    resumed: int = 0
    too_busy: int = 0
    accuracy: float = float("nan")
    growths_mib: dict[str, float] = field(default_factory=dict)
    unjudged: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Disturbance:
    """Faults by name, and how often one is caused.

    Args:
        possible: none for a run that is left alone.
        every_s: mean seconds between two.
        rng: draws which and when.
        damaged: share of the resumes before which a file is damaged.
    """

    possible: Mapping[str, Fault] = field(default_factory=dict)
    every_s: float = 90.0
    rng: random.Random = field(default_factory=random.Random)
    damaged: float = 0.25

    def damages(self) -> bool:
        """Draw whether a file is damaged before a resume."""
        return bool(self.possible) and self.rng.random() < self.damaged

    def wait_s(self) -> float:
        """Draw the seconds until the next."""
        return self.rng.expovariate(1 / self.every_s) if self.possible else float("inf")


ALONE = Disturbance()


@dataclass(frozen=True)
class _Life:
    """A process's exit code, the faults that it had, and whether it had to be killed as it hung."""

    code: int
    faults: Counter[str]
    hung: bool


def run_round(command: Command, kind: str, disturbance: Disturbance = ALONE) -> Round:
    """Resume the command after each end that its faults explain, until it is done or fails."""
    one, started, memory = Round(kind), time.monotonic(), MemoryWatch(command.steps)
    furthest = in_vain = 0
    damage = Damage()
    while True:
        life = _run_process(command, ALONE if in_vain == MOST_IN_VAIN else disturbance, memory, damage.resumed())
        one.faults += life.faults
        if life.code == 0:
            one.done = True
            break
        last, steps = command.last_line(), command.steps_made()
        in_vain = 0 if steps > furthest else in_vain + 1
        furthest = max(furthest, steps)
        if trouble := _trouble(life, last, in_vain):
            one.troubles.append(trouble)
            break
        one.too_busy += TOO_BUSY.fits(life.code, last)
        one.resumed += 1
        if disturbance.damages() and damage.resumed() is None:
            damage = damage_and_resume(command, disturbance.rng)
            one.damaged += [damage.what] if damage.what else []
            if damage.trouble:
                one.troubles.append(damage.trouble)
                break
    one.seconds = time.monotonic() - started
    one.growths_mib, one.unjudged = memory.growths_mib, memory.unjudged
    one.troubles += memory.troubles
    return one


def _trouble(life: _Life, last: str, in_vain: int) -> str | None:
    if life.hung:
        return f"no end after {LONGEST_S:g} s"
    if not explained(life.code, last, life.faults):
        return f"exit code {life.code} after {', '.join(life.faults) or 'no fault'}: {last}"
    if in_vain > MOST_IN_VAIN:
        return f"{in_vain} processes without a step further: {last}"
    return None


def _run_process(command: Command, disturbance: Disturbance, memory: MemoryWatch, resume: Path | None) -> _Life:
    """Run a process, with a fault now and then, until it has ended."""
    process, faults = command.start(resume=resume), Counter[str]()
    run, started = Running(process, command.folder, disturbance.rng), time.monotonic()
    next_fault = started + disturbance.wait_s()
    while process.poll() is None:
        time.sleep(POLL_S)
        memory.look(process.pid, command.steps_made())
        if time.monotonic() - started > LONGEST_S:
            kill(run)
            return _Life(process.wait(), faults, hung=True)
        if time.monotonic() > next_fault:
            name = disturbance.rng.choice(sorted(disturbance.possible))
            faults[name] += 1
            disturbance.possible[name](run)
            next_fault = time.monotonic() + disturbance.wait_s()
    time.sleep(POLL_S)  # where Ray ended the process, another one says so
    return _Life(process.wait(), faults, hung=False)
