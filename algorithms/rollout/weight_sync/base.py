"""What every way from the learners to the engines does."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from algorithms.rollout.weight_sync.wire import BUCKET_BYTES


class TransferUnavailable(RuntimeError):
    """This way cannot be taken here; no engine has been touched."""


@dataclass(frozen=True)
class WireSettings:
    """How weights travel.

    Args:
        dtype: of the engines: more bits would be rounded away there.
        bucket_bytes: bound on a bucket, unless one tensor is larger.
    """

    dtype: str
    bucket_bytes: int = BUCKET_BYTES


class WeightTransfer(Protocol):
    """A way from the learners to the engines."""

    def push(self, learner_group: Any, runner_group: Any, timeout_s: float) -> int:
        """Give the runners the learners' weights.

        A runner holds either the old version, or the new one, or says that it holds none: what it samples in between
        is refused. One that does not confirm the new version is marked unhealthy.

        Args:
            learner_group: RLlib's LearnerGroup.
            runner_group: RLlib's EnvRunnerGroup.
            timeout_s: for each call to the runners.

        Returns:
            The version that the runners now hold.

        Raises:
            LearnerDied: a learner did not answer.
            NoRunnerTookWeights: no runner confirmed the version.
            TransferUnavailable: this way cannot be taken here.
        """
        ...

    def message(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """The learners' version and what a single runner's `set_state` takes, for one that comes back.

        Through Ray's object store, whatever way `push` takes: the others need not stop for it.
        """
        ...


def require_version(answers: dict[int, int], version: int) -> None:
    """Refuse runners that confirm another version than they were sent.

    Raises:
        RuntimeError: they do.
    """
    wrong = {number: answer for number, answer in answers.items() if answer != version}
    if wrong:
        raise RuntimeError(f"env runners hold weights {wrong} by number, {version} was pushed")


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
