"""Signs of life of an actor at work: a thread of its process counts in Ray's key-value store, and the driver looks.

A call may take an hour, so a time limit says nothing. Ray notices a process that ends, not one that is stopped.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv as kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from algorithms.utils.process import stat_fields

BEAT_S = 2.0
# Without a beat for so long a process counts as stopped, unless it computes.
SILENT_S = 60.0
LOOK_S = 5.0
# How long the machine of a silent process is asked whether that computes, and how long it may take to answer.
COMPUTING_S, ANSWER_S = 2.0, 30.0
# A share of a core; an idle process with Ray in it uses less than a tenth of that.
COMPUTES = 0.05
# How often in a row its machine may not say.
UNKNOWN = 3
_REQUEST_S = 5

A = TypeVar("A")
T = TypeVar("T")


def start_beating() -> None:
    """Begin to count, on a thread that ends with the process."""
    context = ray.get_runtime_context()
    key, who = _key(str(context.get_actor_id())), {"node": context.get_node_id(), "pid": os.getpid()}
    with contextlib.suppress(RayError):  # a busy store: without a beat nobody is judged
        _beat(key, who, 0)
    threading.Thread(target=_keep_beating, args=(key, who), name="pulse", daemon=True).start()


def _keep_beating(key: bytes, who: dict[str, Any]) -> None:
    count = 0
    while True:
        time.sleep(BEAT_S)
        count += 1
        with contextlib.suppress(Exception):  # the driver notices by itself if the store is gone
            _beat(key, who, count)


def _beat(key: bytes, who: dict[str, Any], count: int) -> None:
    _store().internal_kv_put(key, json.dumps(who | {"count": count}).encode(), True, None, _REQUEST_S)


class Pulse:
    """What the driver knows of one actor's beats, from now on.

    Args:
        actor: its handle.
    """

    def __init__(self, actor: Any) -> None:
        self._key = _key(actor._actor_id.hex())
        self._beat = b""
        self._silent_s, self._looked_at = 0.0, time.monotonic()
        self._unknown = 0

    def is_gone(self) -> bool:
        """Look again; return whether the actor has been silent for `SILENT_S`, and does not compute either.

        A store that does not answer says nothing about the actor, and one that never had a beat is not judged.
        """
        now = time.monotonic()
        # This process may have been stopped as well: its own absence is no silence of the actor.
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        if self._may_have_beaten():
            return False
        self._silent_s += passed_s
        if self._silent_s < SILENT_S:
            return False
        self._silent_s = 0.0
        computes = _computes(**json.loads(self._beat))
        self._unknown = self._unknown + 1 if computes is None else 0
        silent = computes is False or self._unknown >= UNKNOWN
        # To ask took seconds, in which a long computation may have ended: then its process idles, and beats again.
        return silent and not self._may_have_beaten()

    def _may_have_beaten(self) -> bool:
        """Look into the store; return whether there is a new beat, or the store cannot say."""
        try:
            beat = _store().internal_kv_get(self._key, None, _REQUEST_S)
        except Exception:
            return True
        if beat and beat == self._beat:
            return False
        self._beat, self._silent_s, self._unknown = beat or b"", 0.0, 0
        return True


def _computes(node: str, pid: int, count: int) -> bool | None:
    """Ask a process's machine whether it computes: compiled code may hold Python's lock, and with it the thread.

    None: it does not say, as a machine that is too busy to start a worker, or another system than Linux.
    """
    try:
        share = call_on(node, _cpu_share, pid)
        return None if share is None else bool(share > COMPUTES)
    except FileNotFoundError:  # there is no such process; a task's error is also of its cause's type
        return False
    except RayError:
        return None


def call_on(node: str, function: Callable[[A], T], argument: A) -> T:
    """Return a function's result from another process of a machine; raises a RayError if it does not answer in time."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    asked: Any = ray.remote(function).options(num_cpus=0, scheduling_strategy=there)
    result: T = ray.get(asked.remote(argument), timeout=ANSWER_S)
    return result


def _cpu_share(pid: int) -> float | None:
    """Return the share of a core that a process uses, 1 if it runs or waits for one in the end.

    None where the system has no `/proc`, such as macOS.
    """
    if not os.path.exists("/proc/self/stat"):
        return None
    before = _cpu_s(pid)
    time.sleep(COMPUTING_S)
    if stat_fields(pid)[0] == "R":
        return 1.0
    return (_cpu_s(pid) - before) / COMPUTING_S


def _cpu_s(pid: int) -> float:
    user, system = stat_fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _key(actor_id: str) -> bytes:
    return f"r3_grpo:pulse:{actor_id}".encode()


def _store() -> Any:
    return kv.internal_kv_get_gcs_client()
