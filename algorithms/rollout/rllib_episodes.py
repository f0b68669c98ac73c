"""RLlib's episodes and callbacks in env runners, which otherwise return plain data."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.config.rllib_arguments import RUNNER_CALLBACKS, given_callbacks
from algorithms.rollout.engines.base import Completion
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.failures import describe_error
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import Request, Rollout, Split


class RunnerCallbacks:
    """Calls a configuration's callbacks, one at a time: environments step in many threads.

    Args:
        runner: whose configuration has them.

    Attributes:
        wanted: whether any callback is called in env runners.
    """

    def __init__(self, runner: EnvRunner) -> None:
        self._runner = runner
        self.objects = [kind() for kind in force_list(runner.config.callbacks_class)]
        self._lock = threading.RLock()
        # An evaluation may run beside rollouts for training.
        lookup: Any = runner.config.stats_cls_lookup
        evaluated = MetricsLogger(stats_cls_lookup=lookup, root=False)
        self._logs = {Split.TRAIN: runner.metrics, Split.EVALUATION: evaluated}
        self.wanted = not RUNNER_CALLBACKS.isdisjoint(given_callbacks(runner.config, self.objects))

    def call(self, place: str, split: Split, **found: Any) -> None:
        """Call the callbacks of a place; they log to the metrics of the split."""
        arguments = {"env_runner": self._runner, "metrics_logger": self._logs[split], **found}
        with self._lock:
            make_callback(place, self.objects, getattr(self._runner.config, f"callbacks_{place}"), kwargs=arguments)

    def call_for(self, episode: Episode, place: str, of_rllib: SingleAgentEpisode, **more: Any) -> None:
        """Call those of an episode; what they raise is the episode's error."""
        found = {"env": episode.environment.unwrapped, "env_index": 0, "rl_module": None, **more}
        try:
            self.call(place, episode.request.split, episode=of_rllib, **found)
        except Exception as error:
            episode.fail("environment_error", describe_error(place, error))

    def maker(self, split: Split, make: Callable[[], gymnasium.Env[str, str]]) -> Callable[[], gymnasium.Env[str, str]]:
        """Return how to make an environment and call `on_environment_created`."""
        config = self._runner.config

        def make_and_call() -> gymnasium.Env[str, str]:
            environment = make()
            context = EnvContext(config.env_config, self._runner.worker_index or 0, num_workers=config.num_env_runners)
            self.call("on_environment_created", split, env=environment.unwrapped, env_context=context)
            return environment

        return make_and_call if self.wanted else make

    def sample_ended(self, rollouts: Iterable[Rollout], episodes: list[SingleAgentEpisode]) -> list[Rollout]:
        """Call `on_sample_end`; what it raises is the error of the rollouts that are returned."""
        try:
            for split in self._logs:
                if own := [episode for episode in episodes if episode.get_infos(0)["split"] == split]:
                    self.call("on_sample_end", split, samples=own)
        except Exception as error:
            text = describe_error("on_sample_end", error)
            return [replace(rollout, correct=False, verdict="environment_error", error=text) for rollout in rollouts]
        return list(rollouts)

    def take_metrics(self) -> dict[Split, Any]:
        """Return what callbacks have logged since the last call, for `MetricsLogger.aggregate`."""
        with self._lock:
            return {split: logged for split, log in self._logs.items() if (logged := log.reduce())}


class ObservedTurns(Turns):
    """Also writes the episodes of RLlib that callbacks see, a step for each turn of the policy.

    An observation is the user turn, an action the policy's. `infos` have `messages` (the turns that the observation
    stands for), and what follows: at the reset `uid`, `context`, `split` and `prompt_tokens`; behind an action its
    `tokens` and `logprobs`, and `verdict`, `correct`, `feedback`, `answer`, `error`.

    They are written where a callback is called in env runners, and for `EnvRunner.sample`; not of a question, which is
    neither training nor evaluation.

    Args:
        callbacks: are called for each episode.
        arguments: those of `Turns`.
    """

    def __init__(self, callbacks: RunnerCallbacks, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._callbacks, self._call = callbacks, callbacks.call_for
        self._ended: dict[int, SingleAgentEpisode] = {}

    def begin(self, episode: Episode) -> None:
        """Reset the environment and write the first prompt; `on_episode_created`, then `on_episode_start`."""
        called_for = self._callbacks.wanted and episode.request.split is not Split.QUESTION
        if not (called_for or is_sampled(episode.request)):
            super().begin(episode)
            return
        episode.observed = written = SingleAgentEpisode()
        self._call(episode, "on_episode_created", written)
        if not episode.done:
            super().begin(episode)
        if episode.done:
            return
        request = episode.request
        infos: dict[str, Any] = {"uid": request.uid, "context": request.context, "split": str(request.split)}
        infos |= {"messages": list(episode.messages), "prompt_tokens": list(episode.tokens)}
        written.add_env_reset(episode.messages[-1]["content"], infos)
        self._call(episode, "on_episode_start", written)

    def step(self, episode: Episode, completion: Completion) -> None:
        """Step the environment; `on_episode_step`, and at the end `on_episode_end`."""
        place, turns, chunks = len(episode.messages), len(episode.turns), episode.chunks
        super().step(episode, completion)
        written = episode.observed
        if written is None or len(episode.messages) == place:  # nobody looks, it is given up, or its turn goes on
            return
        own, *following = episode.messages[place:]
        tokens = np.array([*chunks.tokens, *completion.tokens.tolist()], np.int32)
        logprobs = np.array(episode.logprobs[len(episode.logprobs) - len(tokens) :], np.float32)
        judged = episode.turns[turns:]
        infos: dict[str, Any] = {"messages": following, "tokens": tokens, "logprobs": logprobs}
        infos |= {"verdict": episode.verdict, "correct": episode.correct, "answer": episode.answer}
        infos |= {"feedback": judged[0].feedback if judged else "", "error": episode.error}
        cut_off = episode.done and (episode.truncated or episode.error is not None)
        written.add_env_step(
            following[-1]["content"] if following else "",
            own["content"],
            judged[0].reward if judged else 0.0,
            infos,
            terminated=episode.done and not cut_off,
            truncated=cut_off,
            extra_model_outputs={Columns.ACTION_LOGP: float(logprobs.sum())},
        )
        self._call(episode, "on_episode_step", written)
        if written.is_done:
            self._call(episode, "on_episode_end", written, prev_episode_chunks=[])

    def ended(self, episode: Episode) -> None:
        """Keep RLlib's episode for `take`, unless its environment gave no prompt."""
        if episode.observed is not None and episode.observed.is_reset:
            self._ended[episode.request.id] = episode.observed

    def take(self, rollouts: Iterable[Rollout]) -> list[SingleAgentEpisode]:
        """Return RLlib's episodes of rollouts that have ended."""
        return [self._ended.pop(rollout.request_id) for rollout in rollouts if rollout.request_id in self._ended]


def is_sampled(request: Request) -> bool:
    """Return whether it is a request of `EnvRunner.sample`, which numbers them from -1 downwards."""
    return request.id < 0
