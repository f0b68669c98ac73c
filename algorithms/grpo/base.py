"""The parts of a staged algorithm that no method changes: set-up, bookkeeping, evaluation, state."""

import functools
import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune.execution.placement_groups import PlacementGroupFactory

from algorithms.config.errors import ConfigError
from algorithms.config.machine import WITHOUT_ADAPTER
from algorithms.config.placement import engine_in_int8
from algorithms.config.rllib_arguments import check_callbacks
from algorithms.evaluation.no_answer import MissingAnswersWatch
from algorithms.evaluation.results import digest_model
from algorithms.evaluation.sampling import Evaluation, evaluate_policy, make_truncator
from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.first_checks import check_engine, comparable, proof_prompts, proof_rows
from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.grpo.metrics import advantage_metrics, group_metrics, time_split
from algorithms.grpo.monitors import GradingWatch, MismatchWatch, SkippedSteps
from algorithms.grpo.query_sampler import fingerprint
from algorithms.grpo.registry import (
    BUILT_IN,
    build_estimator,
    build_mechanisms,
    enabled,
    named_mechanisms,
    query_sampler,
    settings_of,
)
from algorithms.grpo.rllib_metrics import Sampled, log_lifetime, log_rllib_metrics, rllib_evaluation
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.samples import scoring_row
from algorithms.grpo.state import history_savepoint, open_history, pack_states, restore_states
from algorithms.grpo.types import Sample, StepBatch
from algorithms.history.store import FILE_NAME as HISTORY_FILE
from algorithms.learner.forward import ScoringModel, Statistic
from algorithms.learner.group import (
    find_deviations,
    learner_facts,
    put_weights_as_rllib,
    score_rows,
    set_version,
    tensor_buckets,
)
from algorithms.learner.model import CausalLMModule
from algorithms.learner.weights import put_weights
from algorithms.models.names import fetch_model, resolve_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.preflight.check import fetch_teacher, measure_engine, validate_inputs
from algorithms.preflight.ray_session import without_needless_ray
from algorithms.rollout.attempts import AttemptTruncator, context_of
from algorithms.rollout.conversation import last_text
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.prompt_preview import PromptRenderer
from algorithms.rollout.reward_actors import RewardActors, reward_bundles
from algorithms.rollout.types import OnProgress, Prompt, Request, Sampling, Split
from algorithms.rollout.workers import RolloutWorkers
from algorithms.utils.rng import RngStream, request_seeds
from algorithms.utils.start_watch import StartWatch
from r3env.queries import Query

T = TypeVar("T")

# Stages after whose beginning a step can no longer be forgotten: they change weights or history.
POINT_OF_NO_RETURN = frozenset({"update_policy", "update_history", "sync_weights"})
TRAINING_LOOP = "training_loop"

_logger = logging.getLogger(__name__)


def _refused(answer: str) -> Callable[..., Any]:
    def refuse(algorithm: Algorithm, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(answer)

    return refuse


class BaseAlgorithm(Algorithm):
    """An RLlib algorithm whose training step runs stages, one after another, through `run_stage`.

    After each `train()`, `batch` holds the step's groups and metrics, and `evaluation` the last evaluation.

    Attributes:
        mechanisms: the methods that the algorithm has; those whose switch is on take part.
        keeps_entropies: whether each token's is kept for the rollout files, in half precision; set it before training.
    """

    config: GRPOConfig
    metrics: MetricsLogger
    learner_group: LearnerGroup
    env_runner_group: EnvRunnerGroup
    mechanisms: ClassVar[tuple[type[Mechanism], ...]] = ()
    keeps_entropies = False

    def setup(self, config: GRPOConfig) -> None:  # type: ignore[override]  # its own class of configuration
        """Build engines and learners through RLlib, then the state of the training loop."""
        if config.env_runners_settings.num_threads and config.num_env_runners == 0:
            torch.set_num_threads(config.env_runners_settings.num_threads)
        module = config.rl_module_settings
        if config.measured.is_checked:  # maybe on another machine
            fetch_model(module)
            fetch_teacher(config)
        else:  # Ray Tune makes an algorithm without `build_algo`
            validate_inputs(self.config)  # from which RLlib makes the env runners; `config` is a copy
        self.model_configs, self.model_fingerprint = ModelConfigs.read(module), digest_model(module)
        teacher = config.teacher_settings
        self.teacher_fingerprint = None if teacher is None else digest_model(teacher)
        measure_engine(self.config)
        self.reward_actors = RewardActors(self.config)
        with StartWatch(), without_needless_ray(config):
            super().setup(config)
        check_callbacks(map(type, self.callbacks))
        self.tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        self.environments: dict[Split, Any] = {split: make() for split, make in environment_makers(self.config).items()}
        self.seed: int = config.seed or 0
        facts = learner_facts(self.learner_group)  # a learner's own log is not seen here
        if facts.padded_because:
            _logger.warning("%s trains on padded batches: %s", module.model, facts.padded_because)
        if facts.unshared_because:
            _logger.warning("%s computes shared prompts once per response: %s", module.model, facts.unshared_because)
        self.rollout_workers = RolloutWorkers(self.env_runner_group, self.learner_group, config)
        self._set_up_mechanisms(config)
        settings = config.env_runners_settings
        sampled_in = "int8" if engine_in_int8(config) else settings.dtype
        self.mismatch_watch = MismatchWatch(settings.logp_mismatch_warning, (sampled_in, module.dtype))
        self.grading_watch = GradingWatch()
        self.missing_answers = MissingAnswersWatch(self.environments, self.tokenizer)
        self.skipped_steps = SkippedSteps(config.training_settings.max_skipped_steps)
        self.is_learner_proved = self.is_engine_checked = False
        self.stage: str | None = None
        self.began: dict[str, Any] = {}
        self.stage_seconds: dict[str, float] = {}
        self.steps_done = 0
        self.generated_tokens = 0
        self.sampled = Sampled()
        self.batch = StepBatch(0)
        self.evaluation: Evaluation | None = None
        self.evaluated_at: int | None = None
        self.evaluating = False
        self.on_evaluation_progress: OnProgress | None = None

    def _set_up_mechanisms(self, config: GRPOConfig) -> None:
        training, uids = config.training_settings, self.uids(Split.TRAIN)
        self.kinds = (*BUILT_IN, *self.mechanisms, *named_mechanisms(training, self.mechanisms))
        sampler = query_sampler(training)
        wants_history = any(kind.uses_history for kind in (*enabled(self.kinds, config), sampler))
        self.history = open_history(config, None) if wants_history else None
        environment = self.environments[Split.TRAIN].unwrapped
        self.services = Services(
            config=config,
            seed=self.seed,
            uids=uids,
            query=environment.query,
            score=self.score_samples,
            truncator=lambda limit: AttemptTruncator.of(
                config,
                self.tokenizer,
                environment.reflection_guidance,
                context=context_of(self.model_configs.model),
                limit=limit,
            ),
            opened_history=self.history,
            measure=self.measure_samples,
            score_under=self.score_under,
            render=PromptRenderer.of(
                config, self.tokenizer, self.environments[Split.TRAIN], context_of(self.model_configs.model)
            ).render,
            opened_tokenizer=self.tokenizer,
            vocabulary=self.model_configs.model.get_text_config().vocab_size,
            context=context_of(self.model_configs.model),
        )
        self.sampler = sampler(settings_of(sampler, config), self.services)
        self.query_fingerprint = fingerprint(uids)
        self.active = [*build_mechanisms(self.kinds, self.services), self.sampler]
        pack_states(self.active, None)  # what fits no checkpoint is said now, not at the first one
        self.source = RolloutSource(
            self.rollout_workers,
            self.sampler,
            self.active,
            training,
            self.sampling(),
            self.seed,
            self.estimator,
            config.env_runners_settings.max_failed_share,
        )

    def sampling(self) -> Sampling:
        """Return how training rollouts are sampled."""
        return Sampling.of(self.config.env_runners_settings)

    def uids(self, split: Split) -> list[str]:
        """Return the ids of an environment's queries."""
        return list(self.environments[split].unwrapped.uids)

    def score_samples(self, samples: Sequence[Sample], *, entropy: bool = False) -> None:
        """Fill in the log-probs (and entropies) of samples under the current policy."""
        results = score_rows(self.learner_group, [scoring_row(sample) for sample in samples], entropy=entropy)
        for sample, (logprobs, entropies) in zip(samples, results, strict=True):
            sample.old_logprobs, sample.entropies = logprobs, entropies
            sample.entropy = None if entropies is None else float(entropies.sum())

    def measure_samples(self, samples: Sequence[Sample]) -> None:
        """Fill in missing log-probs, and the sum of the entropies."""
        unscored = [sample for sample in samples if sample.old_logprobs is None]
        self.score_samples(unscored, entropy=True)
        for sample in unscored:
            sample.shed_entropies(keep=self.keeps_entropies)

    def score_under(
        self, samples: Sequence[Sample], under: ScoringModel, statistic: Statistic = "logprobs"
    ) -> list[np.ndarray]:
        """Return the log-probs of samples under a model, float32 [L] each, or another statistic; change no sample."""
        rows = [scoring_row(sample) for sample in samples]
        scored = score_rows(self.learner_group, rows, entropy=False, under=under, statistic=statistic)
        return [found for found, _ in scored]

    def prove_learner(self) -> None:
        """Compare the learners' log-probs with those of the model's own forward, once.

        Raises:
            ConfigError: they differ by more than rounding explains; one line that names the cause where it is found.
        """
        if self.is_learner_proved:
            return
        services = self.services
        prompts = proof_prompts(services.uids, lambda uid: services.render(Prompt(uid), 1))
        rows = proof_rows(prompts, services.context, services.vocabulary)
        names = {"policy": "rl_module.model", "teacher": self.config.teacher_setting}
        for model, deviation in find_deviations(self.learner_group, rows).items():
            if deviation:
                raise ConfigError(f"{names[model]}: {deviation}")
        self.is_learner_proved = True

    def check_engine(self, batch: StepBatch) -> None:
        """Compare the engine's log-probs of a step's samples with the learners', once.

        With rollouts ahead, samples of older weights are left out; a step of these alone leaves it to the next one.

        Raises:
            ConfigError: engine and learner compute different models.
        """
        samples = [] if self.is_engine_checked else comparable(batch.rolled_out, self.rollout_workers.version)
        if samples:
            check_engine(samples, self.score_under(samples, "policy"))
            self.is_engine_checked = True

    @functools.cached_property
    def estimator(self) -> AdvantageEstimator:
        """The estimator that `training.advantage` names."""
        return build_estimator(self.config)

    def begin_step(self) -> None:
        """Note the state at the start of a step, which is saved until the step changes something."""
        self.prove_learner()
        if self.in_step:  # the last one failed: it is repeated, with engines that may sleep or have older weights
            self.source.repeat(self.steps_done, self.began)
            self.rollout_workers.push_weights()
        # The last step's rollouts go before this step's come: together they would double the memory.
        self.batch = StepBatch(self.steps_done)
        self.stage_seconds, self.step_started, self.cpu_started = {}, time.perf_counter(), time.process_time()
        self.began = self.counters()
        self.services.step = self.steps_done
        for mechanism in self.active:
            mechanism.metrics = dict(mechanism.tags)

    def step(self) -> dict[str, Any]:
        """Train and evaluate as RLlib does; a step whose evaluation failed counts, too: later ones are not late."""
        before = self.steps_done
        try:
            result: dict[str, Any] = super().step()
        except BaseException:
            self._iteration += self.steps_done > before
            raise
        return result

    def run_stage(self, stage: Callable[..., T], *arguments: Any) -> T:
        """Run a stage and log its wall time."""
        started = time.perf_counter()
        self.stage = stage.__name__
        result = stage(*arguments)
        self.stage_seconds[f"time/{stage.__name__}"] = time.perf_counter() - started
        return result

    def finish_step(self, batch: StepBatch) -> None:
        """Count, and publish the step's metrics: in `batch.record`, and in RLlib's results for Tune."""
        self.steps_done += 1
        self.stage, self.batch = None, batch
        seconds = time.perf_counter() - self.step_started
        lengths = [sample.rollout.response_length for sample in batch.fresh]
        self.generated_tokens += sum(lengths)
        idle = {tag: value for kind in self.kinds for tag, value in kind.tags.items()}
        batch.record |= idle | {tag: value for each in self.active for tag, value in each.metrics.items()}
        batch.record |= group_metrics(batch.rolled_out) | advantage_metrics(batch.groups)
        batch.record |= self.stage_seconds | time_split(self.stage_seconds)
        batch.record |= {
            "throughput/response_tokens_per_s": sum(lengths) / seconds,
            "throughput/samples_per_s": len(lengths) / seconds,
            "throughput/generated_tokens": float(self.generated_tokens),
            "time/step": seconds,
            "time/cpu": time.process_time() - self.cpu_started,
            "run/epoch": self.sampler.drawn / len(self.services.uids),
        }
        rollouts = [one.rollout for one in batch.fresh]
        for warning in (
            self.missing_answers.observe_step(self.steps_done, rollouts),
            self.grading_watch.observe(batch.record),
        ):
            if warning:
                _logger.warning(warning)
        for tag, value in batch.record.items():
            if not isinstance(value, str):
                self.metrics.log_value(tuple(tag.split("/")), value, window=1)
        self.sampled += Sampled.of(batch)
        log_rllib_metrics(self.metrics, batch, self.sampled, self.config.metrics_num_episodes_for_smoothing)
        if logged := self.rollout_workers.take_callback_metrics(Split.TRAIN):
            self.metrics.aggregate(logged, key=ENV_RUNNER_RESULTS)

    # -- Evaluation, by RLlib's own interval. -----------------------------------------------------------------------

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate on held-out problems with the training runners; the result is also kept in `evaluation`."""
        self._call_back("on_evaluate_start")
        if own := self.config.custom_evaluation_function:
            metrics: dict[str, Any] = own(self, self.env_runner_group)[0]
            self._call_back("on_evaluate_end", evaluation_metrics=metrics)
            return metrics
        self.evaluating = True
        try:
            with self.rollout_workers.uncounted():
                self.evaluation = evaluate_policy(
                    functools.partial(self.rollout_workers.rollout, on_progress=self.on_evaluation_progress),
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
        finally:
            self.evaluating = False
        self.evaluated_at = self.steps_done
        first = [answer.first for answers in self.evaluation.answers for answer in answers]
        if warning := self.missing_answers.observe_evaluation(first):
            _logger.warning(warning)
        logged = self.rollout_workers.take_callback_metrics(Split.EVALUATION)
        metrics = self.evaluation.metrics() | rllib_evaluation(first, logged)
        self._call_back("on_evaluate_end", evaluation_metrics=metrics)
        return metrics

    def sample(
        self, asked: str | Sequence[Mapping[str, str]], n: int = 1, *, seed: int = 0, **sampling: Any
    ) -> list[str]:
        """Return `n` responses of the current policy, which nobody judges.

        Args:
            asked: a problem, which is written as in training, or a conversation: `{"role": …, "content": …}` each.
            n: how many.
            seed: of the sampling: the same one gives the same responses.
            sampling: in place of training's: `temperature`, `max_response_tokens` and other fields of `Sampling`.

        Raises:
            ValueError: the conversation is none, or does not fit the model; one line.
        """
        if isinstance(asked, str):
            environment = self.environments[Split.TRAIN].unwrapped
            asked = [{"role": "user", "content": environment.prompt(Query("", asked, ""))}]
        if not asked or any({"role", "content"} - turn.keys() for turn in asked):
            raise ValueError("sample: no conversation; fix: a text, or turns with `role` and `content`")
        prompt, settings = Prompt(json.dumps([dict(turn) for turn in asked])), replace(self.sampling(), **sampling)
        requests = [
            Request(place, prompt, 0, own, settings, Split.QUESTION)
            for place, own in enumerate(request_seeds(seed, 0, RngStream.SAMPLE, n))
        ]
        with self.rollout_workers.uncounted():
            rollouts = self.rollout_workers.rollout(requests)
        for error in (rollout.error for rollout in rollouts if rollout.error):
            raise ValueError(f"sample: {error}")
        return [last_text(rollout) for rollout in rollouts]

    def _call_back(self, place: str, **found: Any) -> None:
        functions = getattr(self.config, f"callbacks_{place}")
        arguments = {"algorithm": self, "metrics_logger": self.metrics, **found}
        make_callback(place, self.callbacks, functions, kwargs=arguments)

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> CausalLMModule | None:
        """Return a copy of the policy as learners have it, on the CPU, an adapter merged; None for another id."""
        if module_id != DEFAULT_MODULE_ID:
            return None
        module = CausalLMModule(model_config={**self.config.model_config, **WITHOUT_ADAPTER})
        for tensors in tensor_buckets(self.learner_group, "weights"):
            put_weights(module.lm, tensors)
        return module

    _is_stopped = False
    add_module = remove_module = add_policy = remove_policy = _refused("there is one policy, and it stays")
    evaluate_offline = _refused("there is no offline data; fix: algo.evaluate()")
    compute_single_action = compute_actions = _refused("there are no actions; fix: algo.sample('a problem')")
    get_policy = _refused("RLlib's former API stack is not there; fix: algo.get_module()")

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Give learners and engines the result of `get_weights`; rollouts made ahead are dropped.

        Raises:
            ConfigError: `weights` are not by module.
            RuntimeError: a name or a shape that the model does not have.
        """
        if weights.keys() != {DEFAULT_MODULE_ID}:
            raise ConfigError(f"set_weights: the keys are not [{DEFAULT_MODULE_ID!r}]; fix: what get_weights returns")
        put_weights_as_rllib(self.learner_group, weights)
        self._push_what_learners_were_given()

    def _push_what_learners_were_given(self) -> None:
        if self.stage == "sync_weights":  # these are not that step's weights: it is repeated, not ended
            self.stage = "update_history"
        set_version(self.learner_group, self.rollout_workers.version + 1)
        self.abandon_rollouts()
        self.rollout_workers.push_weights()

    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Do nothing: RLlib would restore dead runners with their first weights; `rollout_workers` does it."""
        return []

    def _setup_logdir(self) -> None:
        """Write into Tune's folder of the trial; without Tune make none, as RLlib would in ~/ray_results."""
        if self._storage:
            super()._setup_logdir()
        else:
            self._logdir = tempfile.gettempdir()  # type: ignore[assignment]  # Ray declares it None

    def cleanup(self) -> None:
        """Abandon unfinished rollouts, then stop the actors as RLlib does; a second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.rollout_workers.close()
        super().cleanup()
        self.reward_actors.close()
        if self.history is not None:
            self.history.close()

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """Reserve for a trial of Tune what RLlib does, spares as further env runners, and reward actors at the end."""
        given: Any = cls.get_default_config().update_from_dict(config)
        given.check_settings()
        runners = given.env_runners_settings
        given.env_runners(num_env_runners=runners.num_env_runners + runners.spares, spares=0)
        request = super().default_resource_request(given.to_dict())
        assert isinstance(request, PlacementGroupFactory)
        head: list[dict[str, float]] = [{}] if request.head_bundle_is_empty else []
        bundles = [*head, *request.bundles, *reward_bundles(runners.reward_actor)]
        return PlacementGroupFactory(bundles, strategy=request.strategy)

    @classmethod
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """No second group: the training runners evaluate, with the engines that are there already."""
        return False

    # -- What a checkpoint keeps beside weights and optimizer; see algorithms.train.checkpoints. ----------------------

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state of RLlib, for its own pickled checkpoints, and of the training loop; both resume exactly."""
        return super().get_state(*args, **kwargs) | {TRAINING_LOOP: self.get_training_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`, or a part of it."""
        super().set_state(state)
        if TRAINING_LOOP in state:
            arrays, loop = state[TRAINING_LOOP]
            set_version(self.learner_group, loop["weights_version"])
            self.set_training_state(arrays, loop)
        elif COMPONENT_LEARNER_GROUP in state:
            self._push_what_learners_were_given()

    def restore_from_path(self, path: str | Path, *args: Any, component: str | None = None, **kwargs: Any) -> None:
        """Restore a checkpoint of RLlib's, or the component of it that `path` holds."""
        if component is None:  # RLlib looks into one that is given
            with without_needless_ray(self.config):
                super().restore_from_path(path, *args, **kwargs)
        else:
            super().restore_from_path(path, *args, component=component, **kwargs)
            self._push_what_learners_were_given()

    def abandon_rollouts(self) -> None:
        """Abandon rollouts for further steps; if such a step comes after all, it samples the same queries."""
        self.source.restart(self.source.state)

    @property
    def in_step(self) -> bool:
        """Whether a training step is in progress."""
        return self.stage is not None

    @property
    def can_be_saved(self) -> bool:
        """Whether a checkpoint can be saved: between steps, and within one before it changes any state."""
        return self.stage not in POINT_OF_NO_RETURN

    def get_training_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays, and what fits JSON. Random streams need none: they are functions of seed and step.

        In the middle of a step it is the state in which the step began.

        Raises:
            RuntimeError: a step that failed has changed weights or history: no state goes with them.
        """
        if not self.can_be_saved:
            raise RuntimeError(
                f"the step after {self.steps_done} failed in {self.stage}, after it had begun to change the policy; "
                "fix: resume from the last checkpoint"
            )
        arrays, states = pack_states(self.active, self.history)
        counters = self.counters() if self.stage is None else self.began
        return arrays, counters | {"mechanisms": states}

    def counters(self) -> dict[str, Any]:
        """Return how far the run is, as plain data."""
        return {
            "steps_done": self.steps_done,
            "iteration": self._iteration,
            **self.source.state,
            "generated_tokens": self.generated_tokens,
            "sampled": asdict(self.sampled),
            "weights_version": self.rollout_workers.version,
            "runner_restarts": self.rollout_workers.restarts,
            "skipped_in_a_row": self.skipped_steps.in_a_row,
            "queries": self.query_fingerprint,
            "model": self.model_fingerprint,
            "teacher": self.teacher_fingerprint,
        }

    def _keeps_its_first_model(self) -> bool:
        """Return whether the model that the run began with is needed for as long as it trains."""
        return self.config.rl_module_settings.lora_rank > 0 or self.config.needs_reference

    def keep_state_in(self, folder: Path) -> None:
        """Keep what grows with the run, and what a failure leaves, in files of this folder; call it before training."""
        folder.mkdir(parents=True, exist_ok=True)
        self.skipped_steps.folder = folder
        if self.history is not None:
            self.history.close()
            self.history = self.services.opened_history = open_history(self.config, folder / HISTORY_FILE)

    def start_again(self) -> None:
        """Delete what an earlier process left in those files before its first checkpoint."""
        if self.history is not None:
            self.history.rollback(0)

    def prune(self, state: dict[str, Any]) -> None:
        """Free what only checkpoints older than this one's state need."""
        if self.history is not None:
            self.history.prune(history_savepoint(state.get("mechanisms", {})))

    def set_training_state(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Continue from this state; the learners' weights are already in place.

        Raises:
            ValueError: the history does not hold what the checkpoint was made with.
        """
        same_queries = state["queries"] == self.query_fingerprint
        if not same_queries:
            _logger.warning(
                "environment.data holds other problems than at the checkpoint: training continues at the same "
                "position of another order, and its results differ from those of an uninterrupted run"
            )
            state = state | {"under_way": []}
        if self._keeps_its_first_model() and state.get("model") not in (None, self.model_fingerprint):
            _logger.warning(
                "rl_module.model is another model than at the start of the run: the adapter, or the penalty of "
                "training.beta, now refers to other weights, and results differ from those of an uninterrupted run"
            )
        if self.teacher_fingerprint and state.get("teacher") not in (None, self.teacher_fingerprint):
            _logger.warning(
                "%s is another model than at the checkpoint: the run continues with the present one",
                self.config.teacher_setting,
            )
        self.source.restart(state)
        self.stage = None
        self.steps_done, self._iteration = state["steps_done"], state["iteration"]
        self.generated_tokens, self.sampled = state["generated_tokens"], Sampled(**state["sampled"])
        log_lifetime(self.metrics, self.sampled)
        self.rollout_workers.restarts = state["runner_restarts"]
        self.skipped_steps.in_a_row = state["skipped_in_a_row"]
        self.rollout_workers.push_weights()
        # Last: what fails before it leaves the history to the later checkpoints.
        restore_states(self.active, self.history, arrays, state.get("mechanisms", {}), same_queries=same_queries)
