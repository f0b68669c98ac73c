"""Which way weights take, and what happens where it turns out to be closed."""

import logging
from typing import TYPE_CHECKING, Any

from algorithms.configuration.placement import TransferKind, transfer_kind
from algorithms.rollout.transfer.base import TransferUnavailable, WeightTransfer, WireSettings
from algorithms.rollout.transfer.in_process import InProcessTransfer
from algorithms.rollout.transfer.object_store import ObjectStoreTransfer

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig

_logger = logging.getLogger(__name__)


def choose(config: "GRPOConfig") -> WeightTransfer:
    """See `algorithms.rollout.transfer.choose_transfer`."""
    kind, wire = transfer_kind(config), WireSettings(config.env_runners_settings.dtype)
    if kind is TransferKind.IN_PROCESS:
        return InProcessTransfer()
    if kind is TransferKind.OBJECT_STORE:
        return ObjectStoreTransfer(wire)
    streamed = _streamed(kind, wire)
    return OrObjectStore(streamed, wire) if config.env_runners_settings.weight_transfer == "auto" else streamed


def _streamed(kind: TransferKind, wire: WireSettings) -> WeightTransfer:
    from algorithms.rollout.transfer.ipc import IPCRoute
    from algorithms.rollout.transfer.nccl import NCCLRoute
    from algorithms.rollout.transfer.streamed import StreamedTransfer

    return StreamedTransfer(IPCRoute() if kind is TransferKind.IPC else NCCLRoute(), wire)


class OrObjectStore:
    """Takes a way for as long as it is open, then the object store, which always is."""

    def __init__(self, first: WeightTransfer, wire: WireSettings) -> None:
        self._way, self._wire = first, wire

    def push(self, learner_group: Any, runner_group: Any, timeout_s: float) -> int:
        """See `WeightTransfer.push`."""
        try:
            return self._way.push(learner_group, runner_group, timeout_s)
        except TransferUnavailable as error:
            _logger.warning("weights go through Ray's object store from now on: %s", error)
            self._way = ObjectStoreTransfer(self._wire)
            return self._way.push(learner_group, runner_group, timeout_s)

    def message(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """See `WeightTransfer.message`."""
        return self._way.message(learner_group)
