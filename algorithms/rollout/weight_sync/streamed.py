"""A push between GPUs: learners offer bucket after bucket, and the engines take each one before the next."""

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from algorithms.rollout.weight_sync.base import WireSettings, require_version
from algorithms.rollout.weight_sync.calls import RunnerCalls, on_learners
from algorithms.rollout.weight_sync.object_store import ObjectStoreTransfer
from algorithms.rollout.weight_sync.sender import Link, close_stream, next_bucket, open_stream
from algorithms.rollout.weight_sync.wire import Bucket


class Route(Protocol):
    """A way between GPUs."""

    @property
    def link(self) -> Link:
        """The learners' end."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether learners deliver a bucket while the engines take it (a collective).

        Otherwise the engines take what lies in the learners' memory, which must not be packed anew in the meantime.
        """
        ...

    def prepare(self, learner_group: Any, calls: RunnerCalls) -> None:
        """Check that learners and runners reach each other, and introduce those who have not met.

        Raises:
            TransferUnavailable: they do not; no engine has been touched.
        """
        ...

    def update(self, offers: Sequence[Bucket]) -> dict[str, Any]:
        """The engines' update for a bucket, from what the sending learners offer."""
        ...


class StreamedTransfer:
    """Pushes over a route; a runner that comes back alone is served through the object store."""

    def __init__(self, route: Route, wire: WireSettings) -> None:
        self.route, self.wire = route, wire
        self._store = ObjectStoreTransfer(wire)

    def push(self, learner_group: Any, runner_group: Any, timeout_s: float) -> int:
        """Send to all healthy runners at once, see `WeightTransfer.push`."""
        calls = RunnerCalls(runner_group, timeout_s)
        self.route.prepare(learner_group, calls)
        opened = on_learners(learner_group, functools.partial(open_stream, wire=self.wire, link=self.route.link))[0]
        calls(functools.partial(_start, shapes=opened.shapes))
        self._send_all(learner_group, calls)
        # The learners' buffers are freed first: an engine that slept now takes its cache.
        on_learners(learner_group, close_stream)
        require_version(calls(functools.partial(_finish, version=opened.version)), opened.version)
        return opened.version

    def message(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """For a runner that comes back, see `WeightTransfer.message`."""
        return self._store.message(learner_group)

    def _send_all(self, learner_group: Any, calls: RunnerCalls) -> None:
        pool = ThreadPoolExecutor(1)
        try:
            offers = _next(learner_group)
            while offers is not None:
                receive = functools.partial(_receive, update=self.route.update(offers))
                if self.route.concurrent:
                    following = pool.submit(_next, learner_group)
                    calls(receive)
                    offers = following.result()
                else:
                    calls(receive)
                    offers = _next(learner_group)
        finally:
            # A learner whose peers are gone stays in its collective: waiting for it would hide the error.
            pool.shutdown(wait=False)


def _next(learner_group: Any) -> list[Bucket] | None:
    answers = on_learners(learner_group, next_bucket)
    return [bucket for _, bucket in answers if bucket is not None] if answers[0][0] else None


def bucket_fields(bucket: Bucket) -> dict[str, Any]:
    """What vLLM's engines want to know of a bucket's tensors."""
    return {
        "names": [spec.name for spec in bucket.specs],
        "dtype_names": [spec.dtype for spec in bucket.specs],
        "shapes": [list(spec.shape) for spec in bucket.specs],
    }


def _start(runner: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    runner.engine.start_weights(shapes)


def _receive(runner: Any, update: Mapping[str, Any]) -> None:
    runner.engine.add_weights(update)


def _finish(runner: Any, version: int) -> int:
    runner.engine.finish_weights(version)
    held: int = runner.engine.weights_version
    return held
