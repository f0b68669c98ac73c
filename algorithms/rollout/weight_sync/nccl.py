"""Broadcast weights over NCCL: the first learner sends to all engines on other GPUs, through vLLM's engine for it.

An engine that fails in the middle of a broadcast leaves the others waiting, as in any collective: the learner gives up
a while after the engines' own limit, and the run resumes from its last checkpoint. Between two broadcasts the push
alone is given up. The object store has no such moments.

The learner waits in threads, with a time limit: NCCL itself waits without one, and cannot be called off meanwhile. The
thread is then left where it is.
"""

import functools
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.rllib.core.learner.learner_group import LearnerGroup

from algorithms.config.placement import TransferKind
from algorithms.learner.group import LearnerDied
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.serialization import Bucket
from algorithms.rollout.weight_sync.streamed import GroupRoute, bucket_fields, sender_of
from algorithms.rollout.weight_sync.transfer import (
    RunnerCalls,
    TransferUnavailable,
    failures_of,
    in_a_line,
    on_learners,
)

# For the engines to join, and then for the learner to see that they have.
JOIN_S, AFTERWARDS_S = 180.0, 30.0
# vLLM's receiver cuts an update into broadcasts of this size; ours is one broadcast a bucket.
_WHOLE_BUCKET = 2**62


@dataclass(frozen=True)
class Rendezvous:
    """Where the processes of a group find each other."""

    address: str
    port: int
    world_size: int


class Opening:
    """A group that is being opened in a thread.

    Args:
        device: that the learner computes on.
        rendezvous: where the others come to.
    """

    def __init__(self, device: torch.device, rendezvous: Rendezvous) -> None:
        self._device, self._rendezvous = device, rendezvous
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
            communicator = open_group(self._device, self._rendezvous)
            if communicator.disabled:  # or its broadcasts would do nothing, silently
                communicator, problem = None, "the learner finds no NCCL library"
        except Exception as error:  # reported by `result`
            problem = in_a_line(error)
        with self._lock:
            self._communicator, self._problem = communicator, problem
            too_late = self._given_up and communicator is not None
        if too_late:
            communicator.destroy()


def open_group(device: torch.device, rendezvous: Rendezvous) -> Any:
    """Become rank 0 of the group; return vLLM's communicator when all have joined."""
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    # vLLM makes a stream of its own the current one where it finds none set.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        return stateless_init_process_group(rendezvous.address, rendezvous.port, 0, rendezvous.world_size, device)


def broadcast(communicator: Any, packed: torch.Tensor) -> None:
    """Send a buffer to all others; return when they have it."""
    stream = torch.cuda.current_stream(packed.device)
    with torch.cuda.device(packed.device):  # a learner sees its neighbors' GPUs too
        communicator.broadcast(packed, src=0, stream=stream)
    stream.synchronize()


def place_of_first(learner: GRPOLearner) -> tuple[str, int] | None:
    """Return an address and a free port where the first learner runs."""
    if learner._learner_index:
        return None
    address = ray.util.get_node_ip_address()
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, listener.getsockname()[1]


def begin_opening(learner: GRPOLearner, rendezvous: Rendezvous) -> None:
    """Begin to open the group, instead of an earlier one; returns at once."""
    if learner._learner_index:
        return
    sender = sender_of(learner)
    if sender.communicator is not None:
        sender.communicator.destroy()
        sender.communicator = None
    device = torch.empty(0, device=compute_device(learner.lm)).device  # with its index
    sender.opening = Opening(device, rendezvous)


def end_opening(learner: GRPOLearner, patience_s: float) -> str | None:
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


@dataclass(frozen=True)
class NCCLChannel:
    """The first learner sends; the others gather with it where the model is sharded."""

    def sends(self, learner: GRPOLearner) -> bool:
        """Return whether this is the first learner, which sends."""
        return not learner._learner_index

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> None:
        """Return names and shapes, all that the engines need."""

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Broadcast, while the engines receive; raise LearnerDied where they do not: its stream is blocked for good."""
        sender = sender_of(learner)
        problems: list[str] = []

        def attempt() -> None:
            try:
                broadcast(sender.communicator, packed)
            except Exception as error:  # raised below
                problems.append(in_a_line(error))

        # Engines that receive have a limit of their own.
        patience_s = sender.timeout_s + AFTERWARDS_S
        thread = threading.Thread(target=attempt, name="nccl-broadcast", daemon=True)
        thread.start()
        thread.join(patience_s)
        if thread.is_alive():
            problems.append(f"the engines have not taken a broadcast in {patience_s:g} s")
        if problems:
            sender.communicator = None  # to destroy it would wait as well
            fix = "resume from the last checkpoint with --resume"
            raise LearnerDied(f"a learner could not send its weights: {problems[0]}; fix: {fix}")


class NCCLRoute(GroupRoute):
    """A group of the first learner and all engines' workers; opened again when a runner has been replaced."""

    kind = TransferKind.NCCL
    channel = NCCLChannel()
    concurrent = True

    def set_up(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Form the group."""
        workers = calls(_workers)
        offsets, world_size = {}, 1
        for number in sorted(workers):
            offsets[number], world_size = world_size, world_size + workers[number]
        place = next(place for place in on_learners(learner_group, place_of_first) if place is not None)
        rendezvous = Rendezvous(*place, world_size)
        # Both ends wait for each other, the learner in a thread: one that waited for ever would take the run with it.
        on_learners(learner_group, functools.partial(begin_opening, rendezvous=rendezvous))
        join = functools.partial(_join, rendezvous=rendezvous, offsets=offsets)
        failures = failures_of(calls.attempt(join, min(calls.timeout_s, JOIN_S)))
        patience_s = 0.0 if failures else AFTERWARDS_S
        opened = on_learners(learner_group, functools.partial(end_opening, patience_s=patience_s))
        failures += sorted({answer for answer in opened if answer})
        if failures:
            raise TransferUnavailable(f"no NCCL group of {world_size} processes: {'; '.join(failures)}")

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """Return what is about to be broadcast."""
        return bucket_fields(offers[0])


def _workers(runner: Any) -> int:
    """GPUs of an engine, each with a process that receives."""
    parallel = runner.engine.llm.llm_engine.vllm_config.parallel_config
    return int(parallel.world_size)


def _join(runner: Any, rendezvous: Rendezvous, offsets: Mapping[int, int]) -> None:
    """Have an engine's workers join the group."""
    llm = runner.engine.llm
    llm.shutdown_weight_transfer_engine()
    llm.init_weight_transfer_engine(
        {
            "init_info": {
                "master_address": rendezvous.address,
                "master_port": rendezvous.port,
                "rank_offset": offsets[runner.worker_index],
                "world_size": rendezvous.world_size,
                "packed": True,
                "packed_buffer_size_bytes": _WHOLE_BUCKET,
                "packed_num_buffers": 1,
            }
        }
    )
