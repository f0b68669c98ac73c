"""Weights in transit: named tensors, in buckets of bounded size, each packed into one flat buffer. No Ray here."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

BUCKET_BYTES = 512 * 2**20
# The version of weights that are being replaced: whatever is sampled with them is refused.
NO_VERSION = -1
# Key of an engine's update that is names and tensors at hand, instead of where to receive them.
TENSORS = "tensors"

Named = tuple[str, Any]


@dataclass(frozen=True)
class Serialization:
    """How weights travel.

    Args:
        dtype: of the engines: more bits would be rounded away there, but for tensors that they hold in float32.
        bucket_bytes: bound on a bucket, unless one tensor is larger.
    """

    dtype: str
    bucket_bytes: int = BUCKET_BYTES


class Weights(Protocol):
    """A Hugging Face state dict that comes in buckets."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all tensors by name; tied heads have an entry of their own."""
        ...

    def buckets(self) -> Iterator[list[Named]]:
        """Return the names and tensors, each tensor once. They may be views that the next bucket overwrites."""
        ...


@dataclass(frozen=True)
class TensorsAtHand:
    """Weights in this process, one tensor at a time."""

    shapes: Mapping[str, tuple[int, ...]]
    tensors: Iterable[Named]

    def buckets(self) -> Iterator[list[Named]]:
        """Yield every tensor by itself: only one is held at a time."""
        for named in self.tensors:
            yield [named]


def as_weights(weights: "Weights | Mapping[str, Any] | Iterable[Named]") -> Weights:
    """Return weights unchanged, or a state dict (or its items) as one bucket."""
    if hasattr(weights, "buckets") and hasattr(weights, "shapes"):
        return weights  # type: ignore[return-value]  # narrowed by what it has
    state = dict(weights)
    return TensorsAtHand({name: tuple(tensor.shape) for name, tensor in state.items()}, state.items())


def require_same_shapes(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that do not fit, before anything is changed.

    Raises:
        RuntimeError: names that are missing or unknown, or shapes that differ.
    """
    wrong = sorted(name for name in {**expected, **given} if given.get(name) != expected.get(name))
    if wrong:
        raise RuntimeError(f"these weights are missing, unknown or of another shape: {', '.join(wrong)}")


def require_complete(awaited: Iterable[str]) -> None:
    """Refuse to continue while announced tensors are missing.

    Raises:
        RuntimeError: some are.
    """
    if missing := sorted(awaited):
        raise RuntimeError(f"these weights were announced and have not come: {', '.join(missing)}")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a bucket.

    Args:
        dtype: torch's name of the type that it has in transit, such as `bfloat16`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in transit."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type in transit."""
        return getattr(torch, self.dtype)


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
    shapes: Mapping[str, Sequence[int]],
    dtype: str,
    bucket_bytes: int = BUCKET_BYTES,
    float32: Collection[str] = (),
) -> list[tuple[TensorSpec, ...]]:
    """Cut the weights, in their order, into buckets of at most `bucket_bytes`; a larger tensor has its own bucket.

    Args:
        shapes: of all tensors by name, in the order in which they will be packed.
        dtype: in transit.
        bucket_bytes: bound on what is held beside the weights themselves, on each side.
        float32: names of tensors that keep all their bits.
    """
    buckets: list[list[TensorSpec]] = []
    filled = 0
    for name, shape in shapes.items():
        spec = TensorSpec(name, tuple(shape), "float32" if name in float32 else dtype)
        beyond = filled + spec.nbytes > bucket_bytes
        if not buckets or beyond or filled % spec.torch_dtype.itemsize:  # where no view of that type can begin
            buckets.append([])
            filled = 0
        buckets[-1].append(spec)
        filled += spec.nbytes
    return [tuple(bucket) for bucket in buckets]


def bytes_of(specs: Iterable[TensorSpec]) -> int:
    """Return the bytes of a bucket."""
    return sum(spec.nbytes for spec in specs)


@torch.no_grad()
def pack(tensors: Iterator[tuple[str, torch.Tensor]], specs: Sequence[TensorSpec], buffer: torch.Tensor) -> None:
    """Copy the next tensors into a buffer, in the type of transit.

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
    """Return the names and tensors that are views of a packed buffer."""
    named, offset = [], 0
    for spec in specs:
        part = buffer[offset : offset + spec.nbytes]
        named.append((spec.name, part.view(spec.torch_dtype).view(spec.shape)))
        offset += spec.nbytes
    return named


def release_memory() -> None:
    """Give the GPU's memory that torch keeps for later back to the other processes on it."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
