"""RLlib's own metrics of a step, under the names that its schedulers, stops and examples read.

An environment step is a turn, an agent's step too; a row that learners train on is a module's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ray.rllib.core import ALL_MODULES, DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.utils import metrics as names
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.grpo.types import StepBatch
from algorithms.rollout.types import Rollout


@dataclass(frozen=True)
class Sampled:
    """What a run has sampled and trained on since its start.

    Args:
        episodes: rollouts that ended.
        turns: of these.
        trained_rows: members of the groups that were trained on, however often a step passes over them.
    """

    episodes: int = 0
    turns: int = 0
    trained_rows: int = 0

    @classmethod
    def of(cls, batch: StepBatch) -> "Sampled":
        """Count a step."""
        turns = [_turns(sample.rollout) for sample in batch.fresh]
        return cls(len(turns), sum(turns), sum(len(group.samples) for group in batch.groups))

    def __add__(self, more: "Sampled") -> "Sampled":
        return Sampled(self.episodes + more.episodes, self.turns + more.turns, self.trained_rows + more.trained_rows)


def log_rllib_metrics(metrics: MetricsLogger, batch: StepBatch, sampled: Sampled, window: int) -> None:
    """Log a step under RLlib's names.

    Args:
        metrics: the algorithm's.
        batch: of the step.
        sampled: since the run's start, this step included.
        window: the number of the call's last episodes that `episode_return_mean` and the like are taken over at most.
    """
    _log_episodes(metrics, [sample.rollout for sample in batch.fresh], window)
    for rollout in (sample.rollout for sample in batch.fresh):
        for place in (
            ("agent_episode_return_mean", DEFAULT_AGENT_ID),
            ("module_episode_return_mean", DEFAULT_MODULE_ID),
        ):
            metrics.log_value((names.ENV_RUNNER_RESULTS, *place), rollout.reward, window=window)
    for key, count in _counts(Sampled.of(batch)):
        metrics.log_value(key, count, reduce="sum")
    log_lifetime(metrics, sampled)
    for name, tag in _OF_LEARNER.items():
        if tag in batch.record:
            metrics.log_value((names.LEARNER_RESULTS, DEFAULT_MODULE_ID, name), batch.record[tag], window=1)


_OF_LEARNER = {
    Learner.TOTAL_LOSS_KEY: "policy/loss",
    "entropy": "policy/entropy",
    "mean_kl_loss": "policy/kl",
    "gradients_default_optimizer_global_norm": "policy/grad_norm",
    "default_optimizer_learning_rate": "policy/lr",
}


def rllib_evaluation(rollouts: Sequence[Rollout], logged: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return RLlib's metrics of an evaluation.

    Args:
        rollouts: each an episode.
        logged: by callbacks in env runners.
    """
    metrics = MetricsLogger(root=True)
    _log_episodes(metrics, rollouts, window=len(rollouts))
    metrics.log_value((names.ENV_RUNNER_RESULTS, names.NUM_EPISODES), len(rollouts), reduce="sum")
    if logged:
        metrics.aggregate(list(logged), key=names.ENV_RUNNER_RESULTS)
    return metrics.reduce(compile=True)


def _log_episodes(metrics: MetricsLogger, rollouts: Sequence[Rollout], window: int) -> None:
    for rollout in rollouts:
        for names_of, value in (
            ((names.EPISODE_RETURN_MEAN, names.EPISODE_RETURN_MIN, names.EPISODE_RETURN_MAX), rollout.reward),
            ((names.EPISODE_LEN_MEAN, names.EPISODE_LEN_MIN, names.EPISODE_LEN_MAX), _turns(rollout)),
        ):
            for name, reduce in zip(names_of, ("mean", "min", "max"), strict=True):
                metrics.log_value((names.ENV_RUNNER_RESULTS, name), value, reduce=reduce, window=window)


def log_lifetime(metrics: MetricsLogger, sampled: Sampled) -> None:
    """Set the counts since the run's start, whatever the logger has: it is new in a resumed run, RLlib restores it."""
    for (*place, name), count in _counts(sampled):
        by_id = name in (DEFAULT_AGENT_ID, DEFAULT_MODULE_ID)
        key = (*place[:-1], f"{place[-1]}_lifetime", name) if by_id else (*place, f"{name}_lifetime")
        metrics.log_value(key, count - metrics.peek(key, default=0), reduce="lifetime_sum")


def _counts(sampled: Sampled) -> Iterator[tuple[tuple[str, ...], int]]:
    yield (names.ENV_RUNNER_RESULTS, names.NUM_EPISODES), sampled.episodes
    yield (names.ENV_RUNNER_RESULTS, names.NUM_ENV_STEPS_SAMPLED), sampled.turns
    yield (names.ENV_RUNNER_RESULTS, names.NUM_AGENT_STEPS_SAMPLED, DEFAULT_AGENT_ID), sampled.turns
    yield (names.ENV_RUNNER_RESULTS, names.NUM_MODULE_STEPS_SAMPLED, DEFAULT_MODULE_ID), sampled.turns
    yield (names.LEARNER_RESULTS, ALL_MODULES, names.NUM_ENV_STEPS_TRAINED), sampled.trained_rows
    yield (names.LEARNER_RESULTS, ALL_MODULES, names.NUM_MODULE_STEPS_TRAINED), sampled.trained_rows
    yield (names.LEARNER_RESULTS, DEFAULT_MODULE_ID, names.NUM_MODULE_STEPS_TRAINED), sampled.trained_rows


def _turns(rollout: Rollout) -> int:
    return max(1, len(rollout.turn_lengths))
