"""Transfer through Ray's object store: one object per bucket, which all runners of a node read from shared memory.

It works wherever learners and engines live. The store holds the weights once a node, in the engines' type; a process
holds no more than a bucket beside its own.
"""

import functools
import operator
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from algorithms.config.placement import TransferKind
from algorithms.learner.learner import GRPOLearner
from algorithms.learner.sharding import compute_device
from algorithms.rollout.weight_sync.serialization import (
    Bucket,
    Named,
    Serialization,
    TensorsAtHand,
    bytes_of,
    pack,
    plan_buckets,
    release_memory,
    unpack,
)
from algorithms.rollout.weight_sync.transfer import RunnerCalls, on_learners, require_version


@dataclass(frozen=True)
class StoredWeights:
    """Weights in the object store, as a runner's `set_state` and an engine's `load_weights` take them.

    Args:
        stored: buckets whose payload is the reference of a uint8 array.
    """

    shapes: Mapping[str, tuple[int, ...]]
    stored: tuple[Bucket, ...]

    def buckets(self) -> Iterator[list[Named]]:
        """Fetch bucket after bucket; the tensors are read-only views of shared memory."""
        for number, bucket in enumerate(self.stored):
            for following in self.stored[number + 1 : number + 2]:
                ray.wait([following.payload], timeout=0, fetch_local=True)  # begins to come from another node
            # waits: the driver kills a runner after env_runners.timeout_s
            yield unpack(_view(ray.get(bucket.payload)), bucket.specs)

    def state(self, version: int) -> dict[str, Any]:
        """Return the message that `LLMEnvRunner.set_state` takes."""
        return {WEIGHTS_SEQ_NO: version, COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: self}}


class ObjectStoreTransfer:
    """Puts every bucket once; the runners fetch them side by side."""

    kind = TransferKind.OBJECT_STORE

    def __init__(self, serialization: Serialization) -> None:
        self.serialization = serialization
        self._kept: tuple[int, StoredWeights] | None = None

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """Store the weights and have the runners load them, see `WeightTransfer.push`."""
        version, state = self.publish(learner_group)
        calls = RunnerCalls(runner_group, timeout_s)
        require_version(calls(operator.methodcaller("set_state", state)), version)
        return version

    def publish(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Store the weights, see `WeightTransfer.publish`."""
        self._kept = None  # before the new ones are stored: the store need not hold both
        self._kept = version, weights = store_weights(learner_group, self.serialization)
        return version, weights.state(version)

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Return the weights that were pushed last, see `WeightTransfer.message`."""
        version, weights = self._kept or store_weights(learner_group, self.serialization)
        return version, weights.state(version)


def store_weights(learner_group: LearnerGroup, serialization: Serialization) -> tuple[int, StoredWeights]:
    """Put the learners' weights into the object store, where they stay while the result is referenced.

    Returns:
        Their version, and the weights.

    Raises:
        LearnerDied: a learner did not answer.
    """
    answers = on_learners(learner_group, functools.partial(_store, serialization=serialization))
    return next(answer for answer in answers if answer is not None)


@torch.no_grad()
def _store(learner: GRPOLearner, serialization: Serialization) -> tuple[int, StoredWeights] | None:
    """Runs in every learner, because sharded ones gather together; the first one stores."""
    release_memory()  # an engine that sleeps takes its own back
    shapes, tensors = learner.policy_shapes(), learner.policy_tensors()
    plan = plan_buckets(shapes, serialization.dtype, serialization.bucket_bytes, learner.policy_float32())
    if learner._learner_index:
        for _ in tensors:
            pass
        release_memory()
        return None
    buffer = torch.empty(max(map(bytes_of, plan), default=0), dtype=torch.uint8, device=compute_device(learner.lm))
    stored = []
    for specs in plan:
        pack(tensors, specs, buffer)
        stored.append(Bucket(specs, ray.put(buffer[: bytes_of(specs)].cpu().numpy())))
    del buffer, tensors
    release_memory()
    return int(learner._weights_seq_no), StoredWeights(shapes, tuple(stored))


def _view(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # Shared memory is read-only, which torch has no notion of. Engines copy out of it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class AsLoaded:
    """Engines that keep the model that they have loaded: an evaluation has no learners."""

    kind = TransferKind.IN_PROCESS

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """Send nothing, see `WeightTransfer.push`."""
        return 0

    def publish(self, learner_group: LearnerGroup) -> None:
        """Publish nothing."""

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Return no weights: an engine that comes back has read the model again, and only has to confirm it."""
        return 0, {WEIGHTS_SEQ_NO: 0}


@dataclass(frozen=True)
class InProcessTransfer:
    """Copies tensor by tensor; no tensor is held twice."""

    kind = TransferKind.IN_PROCESS

    def push(self, learner_group: LearnerGroup, runner_group: EnvRunnerGroup, timeout_s: float) -> int:
        """Copy the local learner's weights into the local runner's engine, see `WeightTransfer.push`."""
        learner, runner = cast(GRPOLearner, learner_group._learner), cast(Any, runner_group.local_env_runner)
        release_memory()  # an engine that sleeps takes its own back
        version = int(learner._weights_seq_no)
        runner.engine.load_weights(TensorsAtHand(learner.policy_shapes(), learner.policy_tensors()), version)
        return version

    def publish(self, learner_group: LearnerGroup) -> None:
        """Not used: see `message`."""

    def message(self, learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
        """Not used: an engine in the driver's process does not come back alone."""
        raise NotImplementedError("a local env runner is never replaced")
