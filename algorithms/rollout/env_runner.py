"""The RLlib EnvRunner that rolls out explicit requests with a generation engine."""

import functools
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import gymnasium
import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from algorithms.config.base import BaseConfig
from algorithms.config.machine import RLModuleSettings
from algorithms.config.placement import engine_share, engine_sleeps, sends_adapter, transfer_kind
from algorithms.config.registered import find_registered
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import chat_format, load_tokenizer, stop_token_ids
from algorithms.rollout.agent_turns import episodes_at_once, takes_completions
from algorithms.rollout.attempts import named_length
from algorithms.rollout.engines.base import DROP_WEIGHTS
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.environment_actors import environment_arguments, stand_ins
from algorithms.rollout.episode_runner import EpisodeRunner, close_environment
from algorithms.rollout.reward_actors import judge_of
from algorithms.rollout.rllib_episodes import ObservedTurns, RunnerCallbacks
from algorithms.rollout.types import Prompt, Request, Rollout, RunnerReport, Sampling, Split
from algorithms.utils.process import return_free_memory
from algorithms.utils.rng import RngStream, rng_for
from algorithms.utils.starting import READY, failure_reported, report_stage
from r3env import grading
from r3env.envs.function import judging_with
from r3env.registry import to_make


def environment_makers(config: BaseConfig) -> dict[Split, Callable[[], gymnasium.Env[str, str]]]:
    """Return how to make the training and the held-out environment of a configuration."""
    judge = judge_of(() if config.env_runners_settings.reward_actor.environments else config.measured.reward_actors)
    find_registered(cast(str, config.env))

    def make(arguments: dict[str, Any]) -> gymnasium.Env[str, str]:
        with judging_with(judge):
            return gymnasium.make(to_make(cast(str, config.env)), disable_env_checker=True, **arguments)

    return {split: functools.partial(make, arguments) for split, arguments in environment_arguments(config).items()}


def _adapter(module: RLModuleSettings) -> dict[str, Any]:
    return {"rank": module.lora_rank, "alpha": module.lora_alpha, "targets": module.lora_targets}


class Question(gymnasium.Env[str, str]):
    """A conversation that the policy continues by one turn, which nobody judges: as JSON the uid, or a `problem`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the last turn, and those before it."""
        super().reset(seed=seed)
        options = options or {}
        if "problem" in options:
            return options["problem"], {}
        *before, last = json.loads(options["uid"])
        return last["content"], {"conversation": before}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode."""
        return "", 0.0, True, False, {"correct": False, "verdict": "not_judged"}


class LLMEnvRunner(EnvRunner, Checkpointable):
    """Rolls out requests: an engine samples, environments answer and verify."""

    config: BaseConfig
    env: Any  # a Gymnasium environment; RLlib's annotation is None

    def __init__(self, *, config: BaseConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        if self.config.env_runners_settings.num_threads:
            torch.set_num_threads(self.config.env_runners_settings.num_threads)
        with failure_reported("engine"):
            self.make_module()
            self.make_env()

    def make_module(self) -> None:
        """Start the engine and load the tokenizer."""
        settings, module = self.config.env_runners_settings, self.config.rl_module_settings
        report_stage("engine", "loading weights")
        model = resolve_model(module.model)
        self.tokenizer = load_tokenizer(model, module.revision, module.trust_remote_code)
        self.engine = make_engine(
            settings.engine,
            model=model,
            revision=module.revision,
            trust_remote_code=module.trust_remote_code,
            dtype=settings.dtype,
            max_num_seqs=settings.max_num_seqs,
            max_response_tokens=settings.max_response_tokens,
            use_gpu=self._has_gpu(),
            tokenizer=self.tokenizer,
            eos_token_ids=stop_token_ids(self.tokenizer, model, module.revision),
            tensor_parallel_size=settings.tensor_parallel_size,
            gpu_memory_utilization=engine_share(self.config),
            options=settings.vllm,
            weight_transfer=transfer_kind(self.config),
            sleeps=engine_sleeps(self.config),
            max_model_len=named_length(self.config) or self.config.measured.engine_context,
            cache_bytes=self.config.measured.engine_cache_bytes,
            keeps_cache=settings.cache_in_flight == "keep",
            adapter=_adapter(module) if sends_adapter(self.config) else None,
            on_stage=functools.partial(report_stage, "engine"),
        )
        report_stage("engine", READY)

    def make_env(self) -> None:
        """Prepare the episode runner and one environment, which gives the spaces."""
        self.callbacks = RunnerCallbacks(self)
        makers: dict[Split, Callable[[], gymnasium.Env[str, str]]] = {Split.QUESTION: Question}
        apart = self.config.env_runners_settings.reward_actor
        making = stand_ins if apart.environments and apart.replicas else environment_makers
        makers |= {split: self.callbacks.maker(split, make) for split, make in making(self.config).items()}
        self.env = makers[Split.TRAIN]()
        self._kept: list[Rollout] = []  # that have ended while `sample` ran
        self._sampled = 0
        self._runs_agents = takes_completions(self.env)
        settings = self.config.env_runners_settings
        self.episode_runner = EpisodeRunner(
            self.engine,
            self.tokenizer,
            makers,
            settings.max_num_seqs,
            settings.step_timeout_s,
            chat_format(self.config),
            episodes_at_once(self.env),
            functools.partial(ObservedTurns, self.callbacks),
        )

    def _has_gpu(self) -> bool:
        """A GPU of its own, or, in the driver, the local learner's."""
        local = not self.worker_index
        return self.config.num_gpus_per_env_runner > 0 or (local and self.config.num_gpus_per_learner > 0)

    def advance(
        self, requests: Sequence[Request] = (), withdraw: Collection[int] = (), seconds: float = 1.0
    ) -> RunnerReport:
        """Drop some episodes, take more, and run for a while.

        Args:
            requests: further episodes; their ids must not be those of unfinished ones.
            withdraw: ids of episodes that another runner has finished; those that have ended here are no error.
            seconds: after which the runner reports, see `EpisodeRunner.advance`; sooner when nothing is left.

        Returns:
            The episodes that ended since the last report, and what remains.
        """
        runner = self.episode_runner
        tokens, engine_seconds = runner.generated_tokens, runner.engine_seconds
        runner.withdraw(withdraw)
        runner.add(requests)
        kept, self._kept = self._kept, []
        rollouts, metrics = self._seen_by_callbacks(kept + runner.advance(0.0 if kept else seconds))
        if self._runs_agents and not runner.unfinished:
            return_free_memory()  # of hundreds of threads; elsewhere a step would take a quarter longer
        return RunnerReport(
            rollouts=tuple(rollouts),
            unfinished=runner.unfinished,
            generated_tokens=runner.generated_tokens - tokens,
            engine_seconds=runner.engine_seconds - engine_seconds,
            grading=grading.statistics(),
            metrics=metrics,
        )

    def _seen_by_callbacks(self, rollouts: list[Rollout]) -> tuple[list[Rollout], dict[Split, Any]]:
        """Return rollouts that have ended, and what callbacks have logged."""
        if not self.callbacks.wanted:
            return rollouts, {}
        if episodes := self._turns.take(rollouts):
            rollouts = self.callbacks.sample_ended(rollouts, episodes)
        return rollouts, self.callbacks.take_metrics()

    def sample(  # type: ignore[override]  # RLlib's annotation takes anything
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Return episodes of queries drawn at random, with the current weights; see `ObservedTurns`.

        Args:
            num_timesteps: not taken: an episode is a whole conversation.
            num_episodes: how many; None: one.
            explore: False: each token is the most likely one.
            random_actions: not taken: a random text answers nothing.
            force_reset: each episode begins with a reset anyway.
        """
        if num_timesteps is not None or random_actions:
            name = "random_actions" if random_actions else "num_timesteps"
            raise ValueError(f"EnvRunner.sample: {name} is not taken; fix: num_episodes")
        sampling = Sampling.of(self.config.env_runners_settings)
        sampling = replace(sampling, temperature=0.0) if explore is False else sampling
        requests, queries = [], self.env.unwrapped.queries
        for _ in range(1 if num_episodes is None else num_episodes):
            self._sampled += 1
            rng = rng_for(self.config.seed or 0, self.worker_index or 0, RngStream.SAMPLE, self._sampled)
            prompt = Prompt(queries.uid_at(int(rng.integers(len(queries)))))
            requests.append(Request(-self._sampled, prompt, 0, int(rng.integers(2**63)), sampling))
        self.episode_runner.add(requests)
        rollouts: list[Rollout] = []
        while len(rollouts) < len(requests):
            for rollout in self.episode_runner.advance(1.0):
                (self._kept if rollout.request_id >= 0 else rollouts).append(rollout)
        episodes = self._turns.take(sorted(rollouts, key=lambda rollout: -rollout.request_id))
        self.callbacks.call("on_sample_end", Split.TRAIN, samples=episodes)
        return episodes

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function with this runner; what it raises is the caller's, where RLlib's runner ends its process."""
        return func(self, *args, **kwargs)

    @property
    def _turns(self) -> ObservedTurns:
        return cast(ObservedTurns, self.episode_runner.turns)

    def assert_healthy(self) -> None:
        """Answer a ping; an actor that cannot is replaced."""
        if self.engine is None:
            raise ValueError("the env runner has no engine")

    def get_spaces(self) -> dict[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
        """Return the text spaces of the environment."""
        spaces = (self.env.observation_space, self.env.action_space)
        return {INPUT_ENV_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    def get_metrics(self) -> Any:
        """Return RLlib's per-runner metrics; ours come from the rollouts themselves."""
        return self.metrics.reduce()

    def get_grading_counts(self) -> dict[str, int]:
        """Return what the graders of this process have done so far, see `r3env.grading.statistics`."""
        return grading.statistics()

    def get_pid(self) -> int:
        """Return the process id, for people and for fault tests."""
        return os.getpid()

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the version of the weights; the learner has the weights themselves."""
        return {WEIGHTS_SEQ_NO: self.engine.weights_version}

    def set_state(self, state: dict[str, Any]) -> int:  # type: ignore[override]  # RLlib's answers nothing
        """Take weights and their version; returns the version now in force."""
        weights = state.get(COMPONENT_RL_MODULE)
        if weights is not None:
            if isinstance(weights, ray.ObjectRef):
                weights = ray.get(weights)  # waits: the driver kills a runner after env_runners.timeout_s
            self.engine.load_weights(weights[DEFAULT_MODULE_ID], int(state.get(WEIGHTS_SEQ_NO, 0)))
        return self.engine.weights_version

    def sleep_engine(self) -> None:
        """Free the engine's GPU memory, weights included; `set_state` with weights wakes it."""
        self.engine.sleep(level=DROP_WEIGHTS)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """For RLlib's Checkpointable."""
        return (), {"config": self.config}

    def stop(self) -> None:
        """Close environments and engine."""
        self.episode_runner.close()
        close_environment(self.env)
