"""What ends a rollout for good. No Ray."""


class NoEnvRunnerLeft(TimeoutError):
    """No env runner answers, and none has come back in time."""


class StaleWeights(RuntimeError):
    """A runner goes on sampling with other weights than the learners hold, even after they were sent again."""


class FleetClosed(RuntimeError):
    """The env runners were stopped while they played."""
