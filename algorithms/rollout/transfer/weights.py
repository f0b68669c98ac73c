"""Weights as an engine takes them: what they are called and how large they are first, then bucket after bucket."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# The version of weights that are being replaced: whatever is sampled with them is refused.
NO_VERSION = -1
# Key of an engine's update that is names and tensors at hand, instead of where to receive them.
TENSORS = "tensors"

Named = tuple[str, Any]


class Weights(Protocol):
    """A Hugging Face state dict that comes in buckets."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all tensors by name; tied heads have an entry of their own."""
        ...

    def buckets(self) -> Iterator[list[Named]]:
        """Names and tensors, each tensor once. They may be views that the next bucket overwrites."""
        ...


@dataclass(frozen=True)
class TensorsAtHand:
    """Weights in this process, one tensor at a time."""

    shapes: Mapping[str, tuple[int, ...]]
    tensors: Iterable[Named]

    def buckets(self) -> Iterator[list[Named]]:
        """Every tensor by itself: nothing has to be held together."""
        for named in self.tensors:
            yield [named]


def as_weights(weights: "Weights | Mapping[str, Any] | Iterable[Named]") -> Weights:
    """Weights as they are, or a state dict (or its items) as one bucket."""
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
    """Refuse to go on while announced tensors are missing.

    Raises:
        RuntimeError: some are.
    """
    if missing := sorted(awaited):
        raise RuntimeError(f"these weights were announced and have not come: {', '.join(missing)}")
