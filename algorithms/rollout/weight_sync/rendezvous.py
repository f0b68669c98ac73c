"""The learner's end of opening an NCCL group: it waits in a thread, with a time limit.

NCCL itself waits without a limit for processes that have announced themselves and never come, and cannot be called off
while it does. The thread is then left where it is, and the learner goes on without it.
"""

import socket
import threading
from dataclasses import dataclass
from typing import Any

import ray
import torch

from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.streamed import sender_of
from algorithms.rollout.weight_sync.transfer import in_a_line

# For the engines to join, and then for the learner to see that they have.
JOIN_S, AFTERWARDS_S = 180.0, 30.0


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a group find each other."""

    address: str
    port: int
    world_size: int


class Opening:
    """A group that is being opened in a thread.

    Args:
        device: that the learner computes on.
        meeting: where the others come to.
    """

    def __init__(self, device: torch.device, meeting: Meeting) -> None:
        self._device, self._meeting = device, meeting
        self._lock = threading.Lock()
        self._communicator: Any = None
        self._problem: str | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._open, name="nccl-rendezvous", daemon=True)
        self._thread.start()

    def result(self, patience_s: float) -> Any:
        """Return the communicator.

        Raises:
            RuntimeError: the group cannot be formed, or is not there after `patience_s` seconds: it is given up.
        """
        self._thread.join(patience_s)
        with self._lock:
            if self._communicator is None and self._problem is None:
                self._given_up = True
                raise RuntimeError(f"the learner still waits for the others, {patience_s:g} s after they answered")
            if self._problem is not None:
                raise RuntimeError(self._problem)
            return self._communicator

    def _open(self) -> None:
        communicator: Any = None
        problem = None
        try:
            communicator = open_group(self._device, self._meeting)
            if communicator.disabled:  # or its broadcasts would do nothing, silently
                communicator, problem = None, "the learner finds no NCCL library"
        except Exception as error:  # reported by `result`
            problem = in_a_line(error)
        with self._lock:
            self._communicator, self._problem = communicator, problem
            too_late = self._given_up and communicator is not None
        if too_late:
            communicator.destroy()


def open_group(device: torch.device, meeting: Meeting) -> Any:
    """Become rank 0 of the group; return vLLM's communicator when all have joined."""
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    # vLLM makes a stream of its own the current one where it finds none set.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        return stateless_init_process_group(meeting.address, meeting.port, 0, meeting.world_size, device)


def place(learner: GRPOLearner) -> tuple[str, int] | None:
    """Return an address and a free port where the first learner runs."""
    if learner._learner_index:
        return None
    address = ray.util.get_node_ip_address()
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, listener.getsockname()[1]


def begin(learner: GRPOLearner, meeting: Meeting) -> None:
    """Begin to open the group, instead of an earlier one; returns at once."""
    if learner._learner_index:
        return
    sender = sender_of(learner)
    if sender.communicator is not None:
        sender.communicator.destroy()
        sender.communicator = None
    device = torch.empty(0, device=compute_device(learner.lm)).device  # with its index
    sender.opening = Opening(device, meeting)


def end(learner: GRPOLearner, patience_s: float) -> str | None:
    """Take the opened group; return the error, in words."""
    if learner._learner_index:
        return None
    sender = sender_of(learner)
    opening, sender.opening = sender.opening, None
    try:
        sender.communicator = opening.result(patience_s)
    except RuntimeError as error:  # the driver takes another way or reports why there is none
        return str(error)
    return None
