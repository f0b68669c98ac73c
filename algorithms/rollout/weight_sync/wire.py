"""Weights on the wire: named tensors in buckets of bounded size, each packed into one flat buffer."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

BUCKET_BYTES = 512 * 2**20


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a bucket.

    Args:
        dtype: torch's name of the type that it has on the wire, such as `bfloat16`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type on the wire."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel together.

    Args:
        specs: of its tensors, in the order in which they lie in the buffer.
        payload: where the receiver finds the bytes; what it is depends on the way that they take.
    """

    specs: tuple[TensorSpec, ...]
    payload: Any = None


def plan_buckets(
    shapes: Mapping[str, Sequence[int]], dtype: str, bucket_bytes: int = BUCKET_BYTES
) -> list[tuple[TensorSpec, ...]]:
    """Cut the weights, in their order, into buckets of at most `bucket_bytes`; a larger tensor has its own bucket.

    Args:
        shapes: of all tensors by name, in the order in which they will be packed.
        dtype: on the wire.
        bucket_bytes: bound on what is held beside the weights themselves, on each side.
    """
    buckets: list[list[TensorSpec]] = []
    room = 0
    for name, shape in shapes.items():
        spec = TensorSpec(name, tuple(shape), dtype)
        if not buckets or spec.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(spec)
        room -= spec.nbytes
    return [tuple(bucket) for bucket in buckets]


def bytes_of(specs: Iterable[TensorSpec]) -> int:
    """Bytes of a bucket."""
    return sum(spec.nbytes for spec in specs)


@torch.no_grad()
def pack(tensors: Iterator[tuple[str, torch.Tensor]], specs: Sequence[TensorSpec], buffer: torch.Tensor) -> None:
    """Copy the next tensors into a buffer, in the type of the wire.

    Args:
        tensors: names and tensors, in the order of the plan.
        specs: what comes next, by the plan.
        buffer: uint8 [at least `bytes_of(specs)`], on any device.

    Raises:
        RuntimeError: what comes is not what was planned.
    """
    places = unpack(buffer, specs)
    for spec, (_, place) in zip(specs, places, strict=True):
        name, tensor = next(tensors, ("nothing", torch.empty(0)))
        if name != spec.name or tuple(tensor.shape) != spec.shape or not tensor.is_floating_point():
            sent = f"{name} {list(tensor.shape)} {tensor.dtype}"
            raise RuntimeError(f"the learner announced {spec.name} {list(spec.shape)} and sent {sent}")
        place.copy_(tensor)


def unpack(buffer: torch.Tensor, specs: Sequence[TensorSpec]) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors that are views of a packed buffer."""
    named, offset = [], 0
    for spec in specs:
        part = buffer[offset : offset + spec.nbytes]
        named.append((spec.name, part.view(spec.torch_dtype).view(spec.shape)))
        offset += spec.nbytes
    return named
