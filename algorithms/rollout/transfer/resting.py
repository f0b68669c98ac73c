"""What engines do while the learners work: keep their memory, or give it back to learners on the same GPU."""

from typing import TYPE_CHECKING, Any, Protocol

from algorithms.rollout.transfer.groups import RunnerCalls

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig

# The next weights are on their way: the old ones need not be kept anywhere.
_DROP_WEIGHTS = 2


class Resting(Protocol):
    """What begins when the rollouts of a step are in, and ends with the next push of weights."""

    def begin(self, runner_group: Any, timeout_s: float) -> None:
        """Tell the engines; all of them are idle."""
        ...


class StayAwake:
    """Engines with GPUs of their own have nothing to give."""

    def begin(self, runner_group: Any, timeout_s: float) -> None:
        """Nothing."""


class Sleep:
    """Weights and cache leave the GPU; taking new weights wakes an engine, its cache last."""

    def begin(self, runner_group: Any, timeout_s: float) -> None:
        """Send all engines to sleep; one that does not answer is marked unhealthy."""
        RunnerCalls(runner_group, timeout_s)(_sleep)


def choose_resting(config: "GRPOConfig") -> Resting:
    """By `env_runners.sleep_while_training`."""
    return Sleep() if config.env_runners_settings.sleep_while_training else StayAwake()


def _sleep(runner: Any) -> None:
    runner.engine.sleep(level=_DROP_WEIGHTS)
