"""The two routes between GPUs, each through vLLM's own engine for it.

CUDA IPC: the engine reads the learner's buffer on the GPU that they share.

NCCL: the first learner broadcasts to all engines on other GPUs. A process that dies in the middle of a broadcast
leaves the others waiting, as in any collective: the push then fails after its timeout, and the run resumes from its
last checkpoint. The object store has no such moment.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.learner.learner_group import LearnerGroup

from algorithms.config.placement import TransferKind
from algorithms.learner.learner import GRPOLearner
from algorithms.rollout.weight_sync import ipc_probe, rendezvous
from algorithms.rollout.weight_sync.streamed import bucket_fields, sender_of
from algorithms.rollout.weight_sync.transfer import Failure, RunnerCalls, TransferUnavailable, on_learners
from algorithms.rollout.weight_sync.wire import Bucket

# vLLM's receiver cuts an update into broadcasts of this size; ours is one broadcast a bucket.
_WHOLE_BUCKET = 2**62


@dataclass(frozen=True)
class IPCLink:
    """Every learner exports its buffer: each serves the engine on its own GPU."""

    def sends(self, learner: GRPOLearner) -> bool:
        """Return True: all learners send."""
        return True

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> dict[str, tuple[Any, ...]]:
        """Return the buffer's handle, by the id of the GPU that it is on."""
        from torch.multiprocessing.reductions import reduce_tensor

        sender = sender_of(learner)
        if sender.exported is None:  # one export for all buckets of a push: vLLM maps it once and counts one reader
            _, sender.exported = reduce_tensor(buffer)
        return {ipc_probe.gpu_id(buffer.device): sender.exported}

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Do nothing: the engines have read the buffer in place."""


class IPCRoute:
    """Buckets in the learners' memory; a small tensor is tried when learners and runners first meet."""

    kind = TransferKind.IPC
    link = IPCLink()
    concurrent = False

    def __init__(self) -> None:
        self._members: dict[int, int] = {}

    def prepare(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Check that each engine shares a GPU with a learner, and reads what the learner writes there."""
        members = calls(_process_id)
        if members == self._members:
            return
        self._members = {}
        held = set(on_learners(learner_group, ipc_probe.own_gpu))
        lonely = sorted(n for n, gpus in calls(ipc_probe.visible_gpus).items() if not held.intersection(gpus))
        if lonely:
            raise TransferUnavailable(f"env runners {lonely} share no GPU with a learner")
        failures = _failures(calls.attempt(_introduce)) or self._probe(learner_group, calls)
        if failures:
            raise TransferUnavailable(
                f"no CUDA IPC between learners and engines ({'; '.join(failures)}); likely causes: expandable_segments "
                "in PYTORCH_CUDA_ALLOC_CONF, or containers that do not share an IPC namespace"
            )
        self._members = members

    def _probe(self, learner_group: LearnerGroup, calls: RunnerCalls) -> list[str]:
        """Send a few bytes from every learner to its engine; returns what went wrong, in words."""
        lent = dict(on_learners(learner_group, ipc_probe.lend))
        failures = _failures(lent)
        if not failures:
            loans = {gpu: loan for gpu, loan in lent.items() if isinstance(loan, ipc_probe.Loan)}
            read = functools.partial(ipc_probe.read, loans=loans)
            failures = _failures(calls.attempt(read, min(calls.timeout_s, ipc_probe.PROBE_TIMEOUT_S)))
        on_learners(learner_group, ipc_probe.take_back)
        return failures

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """Return one set of tensors, and where it is on each GPU."""
        handles = {gpu: arguments for offer in offers for gpu, arguments in offer.payload.items()}
        sizes = [spec.nbytes for spec in offers[0].specs]
        return {**bucket_fields(offers[0]), "ipc_handles": handles, "tensor_sizes": sizes}


def _introduce(runner: Any) -> None:
    runner.engine.llm.init_weight_transfer_engine({"init_info": {"packed": True}})


def _failures(answers: Mapping[Any, Any]) -> list[str]:
    return sorted({answer.message for answer in answers.values() if isinstance(answer, Failure)})


@dataclass(frozen=True)
class NCCLLink:
    """The first learner sends; the others gather with it where the model is sharded."""

    def sends(self, learner: GRPOLearner) -> bool:
        """Return whether this is the first learner, which sends."""
        return not learner._learner_index

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> None:
        """Return names and shapes, all that the engines need."""

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Broadcast, while the engines receive."""
        stream = torch.cuda.current_stream(packed.device)
        with torch.cuda.device(packed.device):  # a learner sees its neighbors' GPUs too
            sender_of(learner).communicator.broadcast(packed, src=0, stream=stream)
        stream.synchronize()


class NCCLRoute:
    """A group of the first learner and all engines' workers; opened again when a runner has been replaced."""

    kind = TransferKind.NCCL
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
        place = next(place for place in on_learners(learner_group, rendezvous.place) if place is not None)
        meeting = rendezvous.Meeting(*place, world_size)
        # Both ends wait for each other, the learner in a thread: one that waited for ever would take the run with it.
        on_learners(learner_group, functools.partial(rendezvous.begin, meeting=meeting))
        join = functools.partial(_join, meeting=meeting, offsets=offsets)
        failures = _failures(calls.attempt(join, min(calls.timeout_s, rendezvous.JOIN_S)))
        patience_s = 0.0 if failures else rendezvous.AFTERWARDS_S
        opened = on_learners(learner_group, functools.partial(rendezvous.end, patience_s=patience_s))
        failures += sorted({answer for answer in opened if answer})
        if failures:
            raise TransferUnavailable(f"no NCCL group of {world_size} processes: {'; '.join(failures)}")
        self._members = members

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """Return what is about to be broadcast."""
        return bucket_fields(offers[0])


def _process_id(runner: Any) -> int:
    return os.getpid()


def _workers(runner: Any) -> int:
    """GPUs of an engine, each with a process that receives."""
    parallel = runner.engine.llm.llm_engine.vllm_config.parallel_config
    return int(parallel.world_size)


def _join(runner: Any, meeting: rendezvous.Meeting, offsets: Mapping[int, int]) -> None:
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
