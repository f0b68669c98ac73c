"""Decide whether and when a run that died is restarted, and what to print. Pure: supervisor.py has the processes."""

import signal
from dataclasses import dataclass

from algorithms.train.exit_codes import DONE, INTERRUPTED, WRONG_INPUT

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(frozen=True)
class Ending:
    """How a run's process ended.

    Args:
        code: its exit code, negative for the signal that killed it.
        checkpoint: the step of its newest checkpoint; 0 without one.
        error: the line that it ended with, if any.
        stopped: whether the supervisor was told to stop, by SIGINT or SIGTERM.
        out_of_memory: whether the system killed a process for memory in the meantime.
    """

    code: int
    checkpoint: int = 0
    error: str = ""
    stopped: bool = False
    out_of_memory: bool = False

    @property
    def died(self) -> bool:
        """Whether a restart may help: a signal that reaches the run alone is a fault, not an order."""
        return not self.stopped and self.code not in (DONE, WRONG_INPUT)

    @property
    def reason(self) -> str:
        """The cause of the end, in a few words."""
        if self.code == INTERRUPTED:
            return "interrupted by a signal that its supervisor did not get"
        if self.code >= 0:
            return self.error or f"exit code {self.code}"
        killed = f"killed by {_name(-self.code)}"
        return f"{killed}, as memory ran out" if self.out_of_memory and self.code == -signal.SIGKILL else killed


class Restarts:
    """Counts the starts of a run that brought it no further.

    Args:
        most: restarts in a row without a new checkpoint before it is given up.
    """

    def __init__(self, most: int) -> None:
        self.most, self.made, self.fruitless = most, 0, 0
        self._reached: int | None = None  # unknown before the first death

    def after(self, ending: Ending) -> float | None:
        """Count a death; return the seconds to wait before the next start, None to give up."""
        if self._reached is not None:
            self.fruitless = 0 if ending.checkpoint > self._reached else self.fruitless + 1
        self._reached = ending.checkpoint
        if self.fruitless >= self.most:
            return None
        self.made += 1
        return float(min(FIRST_PAUSE_S * 2**self.fruitless, LONGEST_PAUSE_S))

    def line(self, ending: Ending, run: str | None, pause_s: float) -> str:
        """Return what to print before a restart.

        Args:
            ending: of the process before.
            run: the run directory that is resumed; None where it had none yet.
            pause_s: the wait.
        """
        how = f"resuming {run} after step {ending.checkpoint}" if run else "starting again"
        return f"restart {self.made}: {ending.reason}; {how} in {pause_s:g} s"

    def last_line(self, ending: Ending, run: str | None) -> str:
        """Return what to print when the run is given up."""
        fix = f"; fix: the cause, then --resume {run}" if run else ""
        return f"error: given up after {self.fruitless} restarts without a new checkpoint: {ending.reason}{fix}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
