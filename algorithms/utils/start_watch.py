"""End a start whose engine or learner is stopped (SIGSTOP): RLlib's constructors wait for their actors without a limit.

A start may take an hour, so a time limit says nothing. Ray notices a process that has ended, not one that is stopped,
and a process that swaps, or imports under Python's lock, is as silent as that. So its own machine is asked.
"""

import contextlib
import logging
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import ray
from ray._private import state
from ray._private.worker import global_worker
from ray.exceptions import RayActorError, RayError

from algorithms.utils.heartbeat import call_on
from algorithms.utils.process import stat_fields
from algorithms.utils.starting import DidNotStart

# One that is stopped at so many looks in a row is killed. A start that takes less than the first look costs nothing.
LOOK_S, LOOKS = 30.0, 3
_JOIN_S = 5.0  # of a look that is under way
_LEARNER = "_WrappedExecutable"  # how Ray Train's name of RLlib's learners ends

_logger = logging.getLogger(__name__)


class _Process(NamedTuple):
    pid: int
    node: str
    address: str
    actor: str

    def __str__(self) -> str:
        return f"{self.actor} (process {self.pid} on {self.address})"


class StartWatch:
    """Kills actors of this process that stay stopped while its block runs, and logs which.

    Raises:
        DidNotStart: at the end of a block that failed because an actor died, after one was killed.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start watch", daemon=True)
        self._killed = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)  # a task after Ray's end would start another Ray
        if self._killed and isinstance(error, RayActorError) and not error.actor_init_failed:
            raise DidNotStart(f"{self._killed}, then start again, or resume with --resume") from error

    def _run(self) -> None:
        looks: Counter[_Process] = Counter()
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(Exception):  # Ray does not answer: nothing is known
                looks = Counter({process: looks[process] + 1 for process in _stopped_actors()})
                for process in [process for process, count in looks.items() if count >= LOOKS]:
                    self._kill(process)

    def _kill(self, process: _Process) -> None:
        before, stopped_s = self._killed, (LOOKS - 1) * LOOK_S
        self._killed = (
            f"{process} was stopped (SIGSTOP) for {stopped_s:g} s while it started, and was killed; fix: find what "
            "stops processes there (kill -STOP, a batch system that suspends jobs)"
        )
        try:
            killed = call_on(process.node, _kill_if_stopped, process.pid)
        except RayError:
            self._killed = before
            raise
        if killed:
            _logger.warning("%s", self._killed)
        else:
            self._killed = before


def _stopped_actors() -> Iterator[_Process]:
    """Yield the actors of this process whose own machine says that they are stopped."""
    by_node = defaultdict(list)
    for process in _own_actors():
        by_node[process.node].append(process)
    for node, processes in by_node.items():
        with contextlib.suppress(RayError):  # a machine that does not answer
            stopped = call_on(node, _stopped, [process.pid for process in processes])
            yield from (process for process in processes if process.pid in stopped)


def _own_actors() -> Iterator[_Process]:
    """Yield the actors of which this process has a handle: others of its job may be those of another trial."""
    if not ray.is_initialized():
        return
    worker: Any = global_worker
    for actor, facts in state.actors(job_id=worker.current_job_id).items():
        here = worker.core_worker.get_local_actor_state(ray.ActorID.from_hex(actor)) is not None
        if here and facts["Pid"] and facts["State"] != "DEAD":
            name, address = facts["ActorClassName"], facts["Address"]
            who = "a learner" if name.endswith(_LEARNER) else f"the actor {name}"
            yield _Process(facts["Pid"], address["NodeID"], address["IPAddress"], who)


def _stopped(pids: list[int]) -> list[int]:
    """Return which processes of this machine are stopped, by a signal and not by a debugger."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or the system has no `/proc`
            found += [pid] * (stat_fields(pid)[0] == "T")
    return found


def _kill_if_stopped(pid: int) -> bool:
    """Kill it by its number: a process that is stopped in a constructor takes no request of Ray's to end."""
    if _stopped([pid]):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
