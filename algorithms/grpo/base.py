"""What every step of a staged algorithm needs and no method changes: set-up, bookkeeping, evaluation, state."""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.evaluation.fingerprint import of_model
from algorithms.evaluation.sampling import Evaluation, evaluate_policy, make_truncator
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.metrics import advantage_metrics, group_metrics, time_split
from algorithms.grpo.monitors import MismatchWatch, SkippedSteps
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.grpo.rollout_source import make_pipeline
from algorithms.grpo.types import Group
from algorithms.learner.group import set_version
from algorithms.models.names import fetch_model, resolve_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.rollout.attempts import context_of
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.scheduler import OnProgress
from algorithms.rollout.types import Sampling, Split
from algorithms.rollout.workers import RolloutWorkers

T = TypeVar("T")

# Stages after whose beginning a step can no longer be forgotten: they change weights or history.
POINT_OF_NO_RETURN = frozenset({"update_policy", "update_history", "sync_weights"})
TRAINING_LOOP = "training_loop"

_logger = logging.getLogger(__name__)


class StagedAlgorithm(Algorithm):
    """An RLlib algorithm whose training step runs stages, one after another, through `run_stage`.

    After each `train()`, `record` holds the step's metrics by TensorBoard tag, `groups` its groups, `dropped` those
    that dynamic sampling did not train on, and `evaluation` the last evaluation.
    """

    config: GRPOConfig
    metrics: MetricsLogger
    dropped: Sequence[Group] = ()
    began: dict[str, Any]

    def setup(self, config: GRPOConfig) -> None:  # type: ignore[override]  # its own class of configuration
        """Build engines and learners through RLlib, then the state of the training loop."""
        if config.env_runners_settings.num_threads and config.num_env_runners == 0:
            torch.set_num_threads(config.env_runners_settings.num_threads)
        module = config.rl_module_settings
        fetch_model(module)  # not everybody comes through the command, which has done it
        self.model_configs, self.model_fingerprint = ModelConfigs.read(module), of_model(module)
        super().setup(config)
        self.tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        self.environments: dict[Split, Any] = {split: make() for split, make in environment_makers(config).items()}
        self.seed: int = config.seed or 0
        self.queries = EpochSampler(self.uids(Split.TRAIN), self.seed)
        self.runners = RolloutWorkers(self.env_runner_group, self.learner_group, config)
        self.pipeline = make_pipeline(config.training_settings.max_off_policy_steps, self.runners)
        settings = config.env_runners_settings
        self.mismatch_watch = MismatchWatch(settings.logp_mismatch_warning, (settings.dtype, module.dtype))
        self.skipped_steps = SkippedSteps(config.training_settings.max_skipped_steps)
        self.last_batch_began = self.queries.position
        self.stage: str | None = None
        self.steps_done = 0
        self.generated_tokens = 0
        self.record: dict[str, Any] = {}
        self.groups: list[Group] = []
        self.evaluation: Evaluation | None = None
        self.evaluated_at: int | None = None
        self.on_evaluation_progress: OnProgress | None = None

    def sampling(self) -> Sampling:
        """How training rollouts are sampled."""
        settings = self.config.env_runners_settings
        return Sampling(settings.temperature, settings.top_p, settings.max_response_tokens)

    def uids(self, split: Split) -> list[str]:
        """The ids of an environment's queries."""
        return list(self.environments[split].unwrapped.uids)

    def run_stage(self, stage: Callable[..., T], *arguments: Any) -> T:
        """Run a stage and log its wall time."""
        started = time.perf_counter()
        self.stage = stage.__name__
        result = stage(*arguments)
        self.record[f"time/{stage.__name__}"] = time.perf_counter() - started
        return result

    def finish_step(self, groups: list[Group], seconds: float) -> None:
        """Count, and publish the step's metrics: to `record`, and to RLlib's results for Tune."""
        self.steps_done += 1
        self.stage = None
        self.groups = groups
        played = [*groups, *self.dropped]
        fresh = [sample for group in played for sample in group.samples if not sample.replayed]
        tokens = sum(sample.rollout.response_length for sample in fresh)
        self.generated_tokens += tokens
        self.record |= group_metrics(played) | advantage_metrics(groups) | time_split(self.record)
        self.record |= {
            "throughput/response_tokens_per_s": tokens / seconds,
            "throughput/samples_per_s": len(fresh) / seconds,
            "throughput/generated_tokens": float(self.generated_tokens),
            "time/step": seconds,
            "run/epoch": self.queries.epoch,
        }
        for tag, value in self.record.items():
            if not isinstance(value, str):
                self.metrics.log_value(tuple(tag.split("/")), value, window=1)

    # -- Evaluation, by RLlib's own interval. -----------------------------------------------------------------------

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Held-out evaluation with the training runners; the result is also kept in `evaluation`."""
        self.evaluation = evaluate_policy(
            functools.partial(self.runners.rollout, on_progress=self.on_evaluation_progress),
            self.uids(Split.EVALUATION),
            self.config.evaluation_settings,
            self.sampling(),
            self.seed,
            make_truncator(
                self.config,
                self.tokenizer,
                self.environments[Split.EVALUATION],
                context_of(self.model_configs.model),
            ),
        )
        self.evaluated_at = self.steps_done
        self.runners.forget_counts()
        return self.evaluation.metrics()

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Nothing: RLlib would bring dead runners back with the weights they were made with. `runners` does it."""
        return []

    def cleanup(self) -> None:
        """Give up what is being played, then stop actors as RLlib does."""
        self.runners.close()
        super().cleanup()

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """No second group: the training runners evaluate, with the engines that are there already."""
        return False

    # -- What a checkpoint keeps beside weights and optimizer; see algorithms.train.checkpoint. ----------------------

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """RLlib's, which its own, pickled checkpoints hold, and the training loop's: they resume exactly as well."""
        return super().get_state(*args, **kwargs) | {TRAINING_LOOP: self.get_training_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_state` gave."""
        super().set_state(state)
        if TRAINING_LOOP in state:
            arrays, loop = state[TRAINING_LOOP]
            set_version(self.learner_group, loop["weights_version"])
            self.set_training_state(arrays, loop)

    @property
    def in_step(self) -> bool:
        """Whether a training step is under way."""
        return self.stage is not None

    @property
    def can_be_saved(self) -> bool:
        """Between steps, and within one as long as nothing has changed that the step would change again."""
        return self.stage not in POINT_OF_NO_RETURN

    def get_training_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays, and what fits JSON. Random continuous_batching need none: they are functions of seed and step.

        In the middle of a step it is the state in which the step began.

        Raises:
            RuntimeError: a step that failed has changed weights or history: no state goes with them.
        """
        if not self.can_be_saved:
            raise RuntimeError(
                f"the step after {self.steps_done} failed in {self.stage}, when it had begun to change the policy; "
                "fix: go on from the last checkpoint"
            )
        return {}, self.counters() if self.stage is None else self.began

    def counters(self) -> dict[str, Any]:
        """How far the run is, as plain data."""
        return {
            "steps_done": self.steps_done,
            "query_position": self.pipeline.position(before=self.last_batch_began, after=self.queries.position),
            "generated_tokens": self.generated_tokens,
            "weights_version": self.runners.version,
            "runner_restarts": self.runners.restarts,
            "skipped_in_a_row": self.skipped_steps.in_a_row,
            "queries": self.queries.fingerprint,
            "model": self.model_fingerprint,
        }

    def _keeps_its_first_model(self) -> bool:
        """Whether the model that the run began with is needed for as long as it trains."""
        return self.config.rl_module_settings.lora_rank > 0 or self.config.training_settings.beta > 0

    def keep_state_in(self, folder: Path) -> None:
        """Keep what grows with the run, and what a failure leaves, in files of this folder."""
        self.skipped_steps.folder = folder

    def start_again(self) -> None:
        """Forget what an earlier process left in those files before its first checkpoint; GRPO left nothing."""

    def prune(self, state: dict[str, Any]) -> None:
        """Free what only checkpoints older than this one's state still needed; GRPO keeps nothing for them."""

    def set_training_state(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Go on from there; the learners' weights are in place already."""
        if state["queries"] != self.queries.fingerprint:
            _logger.warning(
                "environment.data holds other problems than when the checkpoint was made: training goes on at the "
                "same place of another order, and is not the run that it would have been"
            )
        if self._keeps_its_first_model() and state.get("model") not in (None, self.model_fingerprint):
            _logger.warning(
                "rl_module.model is another model than the one that the run began with: the adapter, or the penalty of "
                "training.beta, is on top of other weights, and the run is not what it would have been"
            )
        self.pipeline.settle()  # of an algorithm that trains already: what it plays is of the policy that goes
        self.pipeline = make_pipeline(self.config.training_settings.max_off_policy_steps, self.runners)
        self.stage = None
        self.steps_done = self._iteration = state["steps_done"]
        self.queries.position = self.last_batch_began = state["query_position"]
        self.generated_tokens = state["generated_tokens"]
        self.runners.restarts = state["runner_restarts"]
        self.skipped_steps.in_a_row = state["skipped_in_a_row"]
        self.runners.push_weights()
