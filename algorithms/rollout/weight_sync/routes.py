"""The two ways between GPUs, each through vLLM's own engine for it.

CUDA IPC: the engine reads the learner's buffer on the GPU that they share.

NCCL: the first learner broadcasts to all engines on other GPUs. A process that dies in the middle of a broadcast
leaves the others waiting, as in any collective: the push then fails after its timeout, and the run resumes from its
last checkpoint. The object store has no such moment.
"""

import functools
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.rllib.core.learner.learner_group import LearnerGroup

from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.streamed import bucket_fields, sender_of
from algorithms.rollout.weight_sync.transfer import Failure, RunnerCalls, TransferUnavailable, on_learners
from algorithms.rollout.weight_sync.wire import Bucket

# vLLM's receiver cuts an update into broadcasts of this size; ours is one broadcast a bucket.
_WHOLE_BUCKET = 2**62


@dataclass(frozen=True)
class IPCLink:
    """Every learner exports its buffer: each serves the engine on its own GPU."""

    def sends(self, learner: GRPOLearner) -> bool:
        """All do."""
        return True

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
        """The buffer's handle, by the id of the GPU that it is on."""
        from torch.multiprocessing.reductions import reduce_tensor

        sender = sender_of(learner)
        if sender.exported is None:  # one export for all buckets of a push: vLLM maps it once and counts one reader
            _, sender.exported = reduce_tensor(buffer)
        return {_gpu_id(buffer.device): sender.exported}

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Nothing: the engines have read it where it lies."""


class IPCRoute:
    """Buckets that lie in the learners' memory."""

    link = IPCLink()
    concurrent = False

    def prepare(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Check that each engine shares a GPU with a learner."""
        held = set(on_learners(learner_group, _own_gpu))
        lonely = sorted(number for number, gpus in calls(_visible_gpus).items() if not held.intersection(gpus))
        if lonely:
            raise TransferUnavailable(f"env runners {lonely} share no GPU with a learner")
        failures = [answer.message for answer in calls.attempt(_introduce).values() if isinstance(answer, Failure)]
        if failures:
            raise TransferUnavailable(f"no CUDA IPC: {'; '.join(sorted(set(failures)))}")

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """One set of tensors, and where it lies on each GPU."""
        handles = {gpu: arguments for offer in offers for gpu, arguments in offer.payload.items()}
        sizes = [spec.nbytes for spec in offers[0].specs]
        return {**bucket_fields(offers[0]), "ipc_handles": handles, "tensor_sizes": sizes}


def _introduce(runner: Any) -> None:
    runner.engine.llm.init_weight_transfer_engine({"init_info": {"packed": True}})


def _own_gpu(learner: GRPOLearner) -> str:
    """Where the learner computes; it sees its neighbors' GPUs too."""
    device = compute_device(learner.lm)
    return _gpu_id(device) if device.type == "cuda" else "no GPU"


def _visible_gpus(runner: Any) -> list[str]:
    return [_gpu_id(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]


def _gpu_id(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a group find each other."""

    address: str
    port: int
    world_size: int


@dataclass(frozen=True)
class NCCLLink:
    """The first learner sends; the others gather with it where the model is sharded."""

    def sends(self, learner: GRPOLearner) -> bool:
        """The first one does."""
        return not learner._learner_index

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> None:
        """Names and shapes are all that the engines need."""

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Broadcast, while the engines receive."""
        stream = torch.cuda.current_stream(packed.device)
        with torch.cuda.device(packed.device):  # a learner sees its neighbors' GPUs too
            sender_of(learner).communicator.broadcast(packed, src=0, stream=stream)
        stream.synchronize()


class NCCLRoute:
    """A group of the first learner and all engines' workers, made anew when a runner has been replaced."""

    link = NCCLLink()
    concurrent = True

    def __init__(self) -> None:
        self._members: dict[int, int] = {}

    def prepare(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Form the group, unless its members are the same processes as last time."""
        members = calls(_process_id)
        if members == self._members:
            return
        self._members = {}
        workers = calls(_workers)
        offsets, world_size = {}, 1
        for number in sorted(workers):
            offsets[number], world_size = world_size, world_size + workers[number]
        place = next(place for place in on_learners(learner_group, _place) if place is not None)
        meeting = Meeting(*place, world_size)
        with ThreadPoolExecutor(1) as pool:  # both ends wait for each other
            opened = pool.submit(on_learners, learner_group, functools.partial(_open, meeting=meeting))
            joined = calls.attempt(functools.partial(_join, meeting=meeting, offsets=offsets))
            failures = [answer.message for answer in joined.values() if isinstance(answer, Failure)]
            failures += [answer for answer in opened.result() if answer]
        if failures:
            raise TransferUnavailable(f"no NCCL group of {world_size}: {'; '.join(sorted(set(failures)))}")
        self._members = members

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """What is about to be broadcast."""
        return bucket_fields(offers[0])


def _process_id(runner: Any) -> int:
    return os.getpid()


def _workers(runner: Any) -> int:
    """GPUs of an engine, each with a process that receives."""
    parallel = runner.engine.llm.llm_engine.vllm_config.parallel_config
    return int(parallel.world_size)


def _place(learner: GRPOLearner) -> tuple[str, int] | None:
    """An address and a free port where the first learner runs."""
    if learner._learner_index:
        return None
    address = ray.util.get_node_ip_address()
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, listener.getsockname()[1]


def _open(learner: GRPOLearner, meeting: Meeting) -> str | None:
    """Become rank 0 of the group; returns what went wrong, in words."""
    if learner._learner_index:
        return None
    try:
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        sender = sender_of(learner)
        if sender.communicator is not None:
            sender.communicator.destroy()
            sender.communicator = None
        device = torch.empty(0, device=compute_device(learner.lm)).device  # with its index
        # vLLM makes a stream of its own the current one where it finds none set.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            communicator = stateless_init_process_group(meeting.address, meeting.port, 0, meeting.world_size, device)
        if communicator.disabled:  # or its broadcasts would do nothing, silently
            return "the learner finds no NCCL library"
        sender.communicator = communicator
    except Exception as error:  # returned to the driver, which takes another way or reports why there is none
        return f"{type(error).__name__}: {error}"
    return None


def _join(runner: Any, meeting: Meeting, offsets: Mapping[int, int]) -> None:
    """Have an engine's workers join the group."""
    llm = runner.engine.llm
    llm.shutdown_weight_transfer_engine()
    llm.init_weight_transfer_engine(
        {
            "init_info": {
                "master_address": meeting.address,
                "master_port": meeting.port,
                "rank_offset": offsets[runner.worker_index],
                "world_size": meeting.world_size,
                "packed": True,
                "packed_buffer_size_bytes": _WHOLE_BUCKET,
                "packed_num_buffers": 1,
            }
        }
    )
