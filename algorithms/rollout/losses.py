"""Count the env runners lost since the last rollout, and raise the errors that end a run for it."""

import time
from collections.abc import Collection

from ray.exceptions import RayError, RayTaskError

from algorithms.rollout.remote_runner import RemoteRunner, RunnerState
from algorithms.utils.errors import RunError

# A request that kills every runner it meets must not kill them forever.
LOSSES_WITHOUT_PROGRESS = 2


class NoEnvRunnerLeft(RunError, TimeoutError):
    """No env runner answers, and none has come back in time."""


class StaleWeights(RunError):
    """A runner keeps sampling with other weights than the learners hold, even after they were sent again."""


class WorkersClosed(RuntimeError):
    """The env runners were stopped during a rollout."""


class Losses:
    """Decides whether it still makes sense to wait for runners.

    Args:
        limit_s: how long there may be none that is ready.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.without_progress, self.last = 0, ""
        self.ready_at = time.monotonic()

    def count(self, last: str) -> None:
        """Count a loss."""
        self.without_progress, self.last = self.without_progress + 1, last

    def require_runners(self, runners: Collection[RemoteRunner], ready: int) -> None:
        """Check that there is a runner to wait for.

        Args:
            runners: all of them.
            ready: how many can be given work.

        Raises:
            NoEnvRunnerLeft: no runner is ready, and none came back in time; or runners are lost again and again.
        """
        now = time.monotonic()
        if ready:
            self.ready_at = now
        elif now - self.ready_at > self.limit_s or all(runner.state is RunnerState.GONE for runner in runners):
            raise NoEnvRunnerLeft(self._describe("they were lost, and none came back in time"))
        if self.without_progress > LOSSES_WITHOUT_PROGRESS * len(runners):
            reason = f"{self.without_progress} were lost without a single rollout in between"
            raise NoEnvRunnerLeft(self._describe(reason))

    def _describe(self, what: str) -> str:
        return (
            f"no env runner is left: {what}; the last: {self.last}. Fix: look into the runners' logs (Ray's "
            "session folder, logs/worker-*), raise env_runners.timeout_s if responses take longer than that, and "
            "resume from the last checkpoint with --resume"
        )


def describe(error: RayError) -> str:
    """Describe what happened to a runner. After an exception its process lives, but in an unknown state."""
    if isinstance(error, RayTaskError):
        where = str(error).strip()
        return f"raised {error.cause!r}:\n{where}\n"
    return f"died ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
