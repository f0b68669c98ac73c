"""What every way from the learners to the engines does."""

from dataclasses import dataclass
from typing import Any, Protocol

from algorithms.rollout.transfer.wire import BUCKET_BYTES


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
