"""Learner and engine share the driver's process: the engine copies the live weights."""

from dataclasses import dataclass
from typing import Any

from algorithms.rollout.transfer.streams import release_memory
from algorithms.rollout.transfer.weights import TensorsAtHand


@dataclass(frozen=True)
class InProcessTransfer:
    """Copies tensor by tensor; nothing is held twice."""

    def push(self, learner_group: Any, runner_group: Any, timeout_s: float) -> int:
        """Copy the local learner's weights into the local runner's engine, see `WeightTransfer.push`."""
        learner, runner = learner_group._learner, runner_group.local_env_runner
        release_memory()  # an engine that sleeps takes its own back
        version = int(learner._weights_seq_no)
        runner.engine.load_weights(TensorsAtHand(learner.policy_shapes(), learner.policy_tensors()), version)
        return version

    def message(self, learner_group: Any) -> tuple[int, dict[str, Any]]:
        """Not used: an engine in the driver's process does not come back alone."""
        raise NotImplementedError("a local env runner is never replaced")
