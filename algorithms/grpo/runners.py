"""The env runners as one thing that plays requests with weights that are provably the learners'."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from algorithms.grpo.learners import policy_state
from algorithms.rollout.dispatch import OnProgress, dispatch
from algorithms.rollout.errors import EveryEpisodeFailed
from algorithms.rollout.types import Request, Rollout

# Pieces a remote runner gets in turn: more balance unlike lengths, fewer fill its batch better.
CHUNKS_PER_RUNNER = 2


COUNTS_TIMEOUT_S = 10.0
MOST_ERRORS_TOLD = 20

_logger = logging.getLogger(__name__)


class StaleWeights(RuntimeError):
    """A rollout was sampled with other weights than the learners hold."""


class RunnerPool:
    """Env runners that hold the current policy.

    Args:
        runner_group: RLlib's EnvRunnerGroup, with a local runner or remote ones.
        learner_group: RLlib's LearnerGroup, the source of the weights.
        settings: the `env_runners` section.
    """

    def __init__(self, runner_group: Any, learner_group: Any, settings: Any) -> None:
        self.group, self.learner_group, self.settings = runner_group, learner_group, settings
        self.restarts = 0
        self.version = -1
        self._grading = self._grading_totals()
        self._errors_told: set[str] = set()
        self.push_weights()

    def play(self, requests: Sequence[Request], on_progress: OnProgress | None = None) -> list[Rollout]:
        """Play every request; rollouts come back sorted by request id.

        Args:
            requests: what to play.
            on_progress: told now and then how many of how many are done.

        Raises:
            StaleWeights: a runner sampled with other weights than were pushed last.
            EveryEpisodeFailed: the environment failed in all of them.
        """
        chunks = CHUNKS_PER_RUNNER * max(1, self.group.num_remote_env_runners())
        chunk = max(1, -(-len(requests) // chunks))
        report = dispatch(
            self.group,
            requests,
            chunk=min(chunk, self.settings.max_num_seqs) if on_progress else chunk,
            on_progress=on_progress,
            timeout_s=self.settings.timeout_s,
            restore=self._restore,
        )
        self.restarts += report.restarts
        stale = {rollout.weights_version for rollout in report.rollouts} - {self.version}
        if stale:
            raise StaleWeights(f"rollouts came from weights {sorted(stale)}, the learners hold {self.version}")
        self._tell_errors(report.rollouts)
        if report.rollouts and all(rollout.verdict == "environment_error" for rollout in report.rollouts):
            raise EveryEpisodeFailed(
                f"environment.id: every one of {len(report.rollouts)} episodes failed; the first: "
                f"{report.rollouts[0].error}"
            )
        return report.rollouts

    def metrics(self, requests: Sequence[Request], rollouts: Sequence[Rollout]) -> dict[str, float | str]:
        """What was asked for, what came back, and what went wrong on the way."""
        groups = {request.group for request in requests}
        completed = len(requests) == len(rollouts)
        incomplete = groups - {rollout.group for rollout in rollouts} if not completed else set()
        return {
            "rollout/prompts_expected": float(len(groups)),
            "rollout/prompts_completed": float(len(groups) - len(incomplete)),
            "rollout/runner_restarts": float(self.restarts),
            "rollout/engine": self.settings.engine,
            "grading/timeouts": float(sum(rollout.verdict == "timeout" for rollout in rollouts)),
            "grading/no_answer": float(sum(rollout.verdict == "no_answer" for rollout in rollouts)),
            "rollout/environment_errors": float(sum(rollout.verdict == "environment_error" for rollout in rollouts)),
            **self._grading_metrics(),
        }

    def push_weights(self, only: Sequence[int] | None = None) -> None:
        """Send the learners' weights to every runner, or to some, and remember their version.

        Each runner answers with the version it now holds: RLlib's own sync drops an update without a word.
        """
        self.version, weights = policy_state(self.learner_group)
        if self.group.num_remote_env_runners() == 0:
            self.group.local_env_runner.set_state({WEIGHTS_SEQ_NO: self.version, COMPONENT_RL_MODULE: weights})
            return
        message = {WEIGHTS_SEQ_NO: self.version, COMPONENT_RL_MODULE: ray.put(weights)}
        self.group.foreach_env_runner(
            "set_state",
            kwargs={"state": message},
            local_env_runner=False,
            remote_worker_ids=only,
            timeout_seconds=self.settings.timeout_s,
        )

    def _tell_errors(self, rollouts: Sequence[Rollout]) -> None:
        """Say what an environment raised, each message once: the rollouts themselves are left out of training."""
        for rollout in rollouts:
            new = rollout.error is not None and rollout.error not in self._errors_told
            if new and len(self._errors_told) < MOST_ERRORS_TOLD:
                self._errors_told.add(str(rollout.error))
                _logger.warning("an episode of query %s was left out: %s", rollout.uid, rollout.error)

    def _grading_metrics(self) -> dict[str, float]:
        """How often since the last call an answer could not be read, was screened as too costly, or cost a grader."""
        totals = self._grading_totals()
        new, self._grading = totals - self._grading, totals
        return {f"grading/{kind}": float(new[kind]) for kind in ("unread", "screened", "restarts")}

    def _grading_totals(self) -> Counter[str]:
        """What the graders of all runners' processes have done so far, this run or not."""
        if self.group.num_remote_env_runners() == 0:
            counts = [self.group.local_env_runner.get_grading_counts()]
        else:
            counts = self.group.foreach_env_runner(
                "get_grading_counts", local_env_runner=False, timeout_seconds=COUNTS_TIMEOUT_S
            )
        totals: Counter[str] = Counter()
        for count in counts:
            totals.update(count)
        return totals

    def _restore(self) -> int:
        recovered = self.group.probe_unhealthy_env_runners(timeout_seconds=1.0)
        if recovered:
            self.push_weights(recovered)
        return len(recovered)
