"""Choose how weights travel."""

import logging
from typing import Any

from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from algorithms.config.base import BaseConfig
from algorithms.config.placement import TransferKind, transfer_kind
from algorithms.rollout.weight_sync.object_store import InProcessTransfer, ObjectStoreTransfer
from algorithms.rollout.weight_sync.serialization import Serialization
from algorithms.rollout.weight_sync.transfer import TransferUnavailable, WeightTransfer

_logger = logging.getLogger(__name__)


def choose_transfer(config: BaseConfig) -> WeightTransfer:
    """Return the configured transfer, or the best one for where learners and engines are.

    Raises:
        ConfigError: `env_runners.weight_transfer` cannot work where they live.
    """
    kind, serialization = transfer_kind(config), Serialization(config.env_runners_settings.dtype)
    if kind is TransferKind.IN_PROCESS:
        return InProcessTransfer()
    if kind is TransferKind.OBJECT_STORE:
        return ObjectStoreTransfer(serialization)
    streamed = _streamed(kind, serialization)
    return OrObjectStore(streamed, serialization) if config.env_runners_settings.weight_transfer == "auto" else streamed


def _streamed(kind: TransferKind, serialization: Serialization) -> WeightTransfer:
    from algorithms.rollout.weight_sync.ipc import IPCRoute
    from algorithms.rollout.weight_sync.nccl import NCCLRoute
    from algorithms.rollout.weight_sync.streamed import StreamedTransfer

    return StreamedTransfer(IPCRoute() if kind is TransferKind.IPC else NCCLRoute(), serialization)


class OrObjectStore:
    """Uses a transfer while it is available, then the object store, which always is."""

    def __init__(self, first: WeightTransfer, serialization: Serialization) -> None:
        self._way, self._serialization = first, serialization

    @property
    def kind(self) -> TransferKind:
        """See `WeightTransfer.kind`."""
        return self._way.kind

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """See `WeightTransfer.push`."""
        try:
            return self._way.push(learner_group, runner_group, timeout_s)
        except TransferUnavailable as error:
            _logger.warning("weights go through Ray's object store from now on: %s", error.reason)
            self._way = ObjectStoreTransfer(self._serialization)
            return self._way.push(learner_group, runner_group, timeout_s)

    def publish(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]] | None:
        """See `WeightTransfer.publish`."""
        return self._way.publish(learner_group)

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """See `WeightTransfer.message`."""
        return self._way.message(learner_group)
