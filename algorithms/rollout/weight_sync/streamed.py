"""Send weights between GPUs: learners offer bucket after bucket, and the engines take each before the next.

The learners' functions run in every learner: sharded ones gather each tensor together.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.placement import TransferKind
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.object_store import ObjectStoreTransfer
from algorithms.rollout.weight_sync.serialization import (
    Bucket,
    Serialization,
    TensorSpec,
    bytes_of,
    pack,
    plan_buckets,
    release_memory,
)
from algorithms.rollout.weight_sync.transfer import RunnerCalls, on_learners, process_id, require_version


class Channel(Protocol):
    """How the bytes leave a learner."""

    def sends(self, learner: GRPOLearner) -> bool:
        """Return whether this learner sends, or only gathers with those that do."""
        ...

    def offer(self, learner: GRPOLearner, buffer: torch.Tensor) -> Any:
        """Return what the receivers need to know of a packed buffer."""
        ...

    def deliver(self, learner: GRPOLearner, packed: torch.Tensor) -> None:
        """Send a packed buffer while the receivers receive; return when it may be packed again."""
        ...


class Route(Protocol):
    """A route between GPUs."""

    @property
    def kind(self) -> TransferKind:
        """Its name."""
        ...

    @property
    def channel(self) -> Channel:
        """The learners' end."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether learners deliver a bucket while the engines take it (a collective).

        Otherwise the engines take what lies in the learners' memory, which must not be packed anew in the meantime.
        """
        ...

    def prepare(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Check that learners and runners reach each other, and introduce new ones.

        Raises:
            TransferUnavailable: they do not; no engine has been touched.
        """
        ...

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """Return the engines' update for a bucket, from what the sending learners offer."""
        ...


class GroupRoute:
    """A route that learners and runners set up together, anew when the process of a runner is another one."""

    def __init__(self) -> None:
        self._members: dict[int, int] = {}

    def prepare(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Set up the route, unless its members are the same processes as last time; see `Route.prepare`."""
        members = calls(process_id)
        if members == self._members:
            return
        self._members = {}
        self.set_up(learner_group, calls)
        self._members = members

    def set_up(self, learner_group: LearnerGroup, calls: RunnerCalls) -> None:
        """Introduce learners and runners to each other, see `Route.prepare`."""
        raise NotImplementedError


class StreamedTransfer:
    """Pushes over a route; a runner that comes back alone is served through the object store."""

    def __init__(self, route: Route, serialization: Serialization) -> None:
        self.route, self.serialization = route, serialization
        self._store = ObjectStoreTransfer(serialization)

    @property
    def kind(self) -> TransferKind:
        """The route's."""
        return self.route.kind

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """Send to all healthy runners at once, see `WeightTransfer.push`."""
        calls = RunnerCalls(runner_group, timeout_s)
        self.route.prepare(learner_group, calls)
        members = list(calls.ids)
        opening = functools.partial(
            open_stream, serialization=self.serialization, channel=self.route.channel, timeout_s=timeout_s
        )
        opened = on_learners(learner_group, opening)[0]
        calls(functools.partial(_start, shapes=opened.shapes))
        self._send_all(learner_group, calls, members)
        # An engine that slept takes its cache when it finishes. The learners' buffers are freed before, which needs
        # that no engine maps them any more.
        calls(functools.partial(_end_transfer, version=opened.version))
        on_learners(learner_group, close_stream)
        require_version(calls(functools.partial(_finish, version=opened.version)), opened.version)
        return opened.version

    def publish(self, learner_group: LearnerGroup) -> None:
        """Not used, see `WeightTransfer.publish`."""

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Return the message for a runner that comes back, see `WeightTransfer.message`."""
        return self._store.message(learner_group)

    def _send_all(self, learner_group: LearnerGroup, calls: RunnerCalls, members: Sequence[int]) -> None:
        pool = ThreadPoolExecutor(1)
        try:
            offers = _next(learner_group)
            while offers is not None:
                if self.route.concurrent and calls.ids != members:
                    calls.give_up_all("another one failed, without which a broadcast never ends")
                receive = functools.partial(_receive, update=self.route.update(offers))
                if self.route.concurrent:
                    following = pool.submit(_next, learner_group)
                    try:
                        calls(receive)
                    finally:  # also when no engine is left: nobody may use a learner that waits for them
                        # waits: for learners, which give up by themselves; a silent one is killed
                        offers = following.result()
                else:
                    calls(receive)
                    offers = _next(learner_group)
        finally:
            pool.shutdown(wait=False)


def _next(learner_group: LearnerGroup) -> list[Bucket] | None:
    answers = on_learners(learner_group, next_bucket)
    return [bucket for _, bucket in answers if bucket is not None] if answers[0][0] else None


def bucket_fields(bucket: Bucket) -> dict[str, Any]:
    """Return what vLLM's engines need to know of a bucket's tensors."""
    return {
        "names": [spec.name for spec in bucket.specs],
        "dtype_names": [spec.dtype for spec in bucket.specs],
        "shapes": [list(spec.shape) for spec in bucket.specs],
    }


def _start(runner: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    runner.engine.start_weights(shapes)


def _receive(runner: Any, update: Mapping[str, Any]) -> None:
    runner.engine.add_weights(update)


def _end_transfer(runner: Any, version: int) -> None:
    runner.engine.end_transfer(version)


def _finish(runner: Any, version: int) -> int:
    runner.engine.finish_weights(version)
    return runner.engine.weights_version


@dataclass
class Sender:
    """What a learner keeps between the calls of a push, and from one push to the next.

    Args:
        exported: the handle of the buffer of the push that is under way, where engines read it by CUDA IPC.
        communicator: of the NCCL group with the engines, where this learner is in one.
        opening: of such a group, while its members find each other.
        lent: a tensor that engines try CUDA IPC with.
        timeout_s: for each of the runners' calls in the push that is under way.
    """

    buckets: Iterator[Bucket | None] = field(default_factory=lambda: iter(()))
    exported: Any = None
    communicator: Any = None
    opening: Any = None
    lent: Any = None
    timeout_s: float = 0.0


@dataclass(frozen=True)
class Opened:
    """What a learner is about to send."""

    version: int
    shapes: Mapping[str, tuple[int, ...]]


def sender_of(learner: GRPOLearner) -> Sender:
    """Return the learner's sender; the first call makes it."""
    if learner.weight_sender is None:
        learner.weight_sender = Sender()
    return learner.weight_sender


def open_stream(learner: GRPOLearner, *, serialization: Serialization, channel: Channel, timeout_s: float) -> Opened:
    """Begin to send; the GPU memory that torch merely keeps for later goes to the engines."""
    release_memory()
    shapes = learner.policy_shapes()
    plan = plan_buckets(shapes, serialization.dtype, serialization.bucket_bytes, learner.policy_float32())
    sender = sender_of(learner)
    sender.buckets, sender.exported = _buckets(learner, plan, channel), None
    sender.timeout_s = timeout_s
    return Opened(int(learner._weights_seq_no), shapes)


def next_bucket(learner: GRPOLearner) -> tuple[bool, Bucket | None]:
    """Deliver the bucket that was offered last, and offer the next one.

    Returns:
        Whether there is a next one, and it, if this learner sends.
    """
    try:
        return True, next(sender_of(learner).buckets)
    except StopIteration:
        return False, None


def close_stream(learner: GRPOLearner) -> None:
    """Free the buffer, which no engine maps any more."""
    sender = sender_of(learner)
    sender.buckets, sender.exported = iter(()), None
    release_memory()


@torch.no_grad()
def _buckets(learner: GRPOLearner, plan: list[tuple[TensorSpec, ...]], channel: Channel) -> Iterator[Bucket | None]:
    tensors = learner.policy_tensors()
    if not channel.sends(learner):
        for specs in plan:
            for _ in specs:
                next(tensors)
            yield None
        return
    buffer = torch.empty(max(map(bytes_of, plan), default=0), dtype=torch.uint8, device=compute_device(learner.lm))
    for specs in plan:
        pack(tensors, specs, buffer)
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()  # others read it, on streams of their own
        yield Bucket(specs, channel.offer(learner, buffer))
        channel.deliver(learner, buffer[: bytes_of(specs)])
