"""The learner's end of a push between GPUs: one open stream of buckets, in a buffer on the GPU.

These functions run in the learners. Sharded learners gather every tensor together, so all of them run them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.base import WireSettings
from algorithms.rollout.weight_sync.wire import Bucket, TensorSpec, bytes_of, pack, plan_buckets


class Link(Protocol):
    """How the bytes leave a learner."""

    def sends(self, learner: Any) -> bool:
        """Whether this learner sends, or only gathers with those that do."""
        ...

    def offer(self, learner: Any, buffer: torch.Tensor) -> Any:
        """What the receivers need to know of a buffer; asked once it is packed."""
        ...

    def deliver(self, learner: Any, packed: torch.Tensor) -> None:
        """Send what was packed, while the receivers receive; returns when the buffer may be packed anew."""
        ...


@dataclass
class Sender:
    """What a learner keeps between the calls of a push, and from one push to the next.

    Args:
        exported: the handle of the buffer of the push that is under way, where engines read it by CUDA IPC.
        communicator: of the NCCL group with the engines, where this learner is in one.
    """

    buckets: Iterator[Bucket | None] = field(default_factory=lambda: iter(()))
    exported: Any = None
    communicator: Any = None


@dataclass(frozen=True)
class Opened:
    """What a learner is about to send."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]


def sender_of(learner: Any) -> Sender:
    """The learner's sender, made when it is first asked for."""
    if learner.weight_sender is None:
        learner.weight_sender = Sender()
    sender: Sender = learner.weight_sender
    return sender


def open_stream(learner: Any, *, wire: WireSettings, link: Link) -> Opened:
    """Begin to send; the GPU memory that torch merely keeps for later goes to the engines."""
    release_memory()
    shapes = learner.policy_shapes()
    plan = plan_buckets(shapes, wire.dtype, wire.bucket_bytes)
    sender = sender_of(learner)
    sender.buckets, sender.exported = _buckets(learner, plan, link), None
    return Opened(int(learner._weights_seq_no), shapes)


def next_bucket(learner: Any) -> tuple[bool, Bucket | None]:
    """Deliver the bucket that was offered last, and offer the next one.

    Returns:
        Whether there is a next one, and it, if this learner sends.
    """
    try:
        return True, next(sender_of(learner).buckets)
    except StopIteration:
        return False, None


def close_stream(learner: Any) -> None:
    """Free the buffer; one that engines still map goes with the next push."""
    sender = sender_of(learner)
    sender.buckets, sender.exported = iter(()), None
    release_memory()


def release_memory() -> None:
    """Give the GPU's memory that torch keeps for later back to the other processes on it."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


@torch.no_grad()
def _buckets(learner: Any, plan: list[tuple[TensorSpec, ...]], link: Link) -> Iterator[Bucket | None]:
    tensors = learner.policy_tensors()
    if not link.sends(learner):
        for specs in plan:
            for _ in specs:
                next(tensors)
            yield None
        return
    buffer = torch.empty(max(map(bytes_of, plan), default=0), dtype=torch.uint8, device=compute_device(learner.lm))
    for specs in plan:
        pack(tensors, specs, buffer)
        if buffer.is_cuda:
            torch.cuda.current_stream(
                buffer.device
            ).synchronize()  # others read it, on continuous_batching of their own
        yield Bucket(specs, link.offer(learner, buffer))
        link.deliver(learner, buffer[: bytes_of(specs)])
