"""How a run may end after which fault. Any other end is a find."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

INTERRUPTED = 130


@dataclass(frozen=True)
class Ending:
    """An exit code, as `subprocess` has it, and what the last line then begins with."""

    code: int
    last: str = ""

    def fits(self, code: int, last: str) -> bool:
        """Whether a process ended so."""
        return code == self.code and last.startswith(self.last)


# A signal that comes before the command takes it ends Python. While Ray starts, and after the last step, Ray's own
# handler of SIGTERM leaves with the signal's number; between its start and the first step it must not be left with the
# one of Ray's compiled core, which aborts. A fault that is not here ends no run.
_TERMINATED = (Ending(INTERRUPTED), Ending(-signal.SIGTERM), Ending(int(signal.SIGTERM)))
AFTER: dict[str, tuple[Ending, ...]] = {
    "SIGKILL": (Ending(-signal.SIGKILL),),
    "SIGTERM": _TERMINATED,
    "SIGTERM twice": _TERMINATED,
    "SIGINT": (Ending(INTERRUPTED), Ending(-signal.SIGINT)),
    "full disk": (Ending(1, "error: No space left on device"),),
}
# No fault of ours, and none of the run's: Ray gives itself half a minute to start.
TOO_BUSY = Ending(1, "error: Ray did not start")


def explained(code: int, last: str, faults: Iterable[str]) -> bool:
    """Whether a process that had these faults may end with this exit code and this last line."""
    return any(ending.fits(code, last) for ending in [TOO_BUSY, *(e for name in faults for e in AFTER.get(name, ()))])
