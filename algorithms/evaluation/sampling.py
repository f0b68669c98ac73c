"""Held-out evaluation: several samples a problem, pass@k, lengths, and one reflection turn where asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithms.evaluation.metrics import mean_pass_at_k
from algorithms.rollout.attempts import AttemptTruncator, attempt_of
from algorithms.rollout.types import Attempt, Context, Prompt, Request, Rollout, Sampling, Split, refuse_if_all_failed
from algorithms.utils.rng import RngStream, request_seeds

Play = Callable[[Sequence[Request]], list[Rollout]]


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one evaluation.

    Args:
        uids: the problems.
        correct: bool [problems, samples].
        tokens: int [problems, samples], response lengths.
        truncated: bool [problems, samples].
        ks: for which k pass@k is reported.
        reflected: bool [problems, samples], correct at first or after one reflection turn; None where not asked for.
        rollouts: the plain responses, problem by problem.
    """

    uids: tuple[str, ...]
    correct: np.ndarray
    tokens: np.ndarray
    truncated: np.ndarray
    ks: tuple[int, ...]
    reflected: np.ndarray | None = None
    rollouts: tuple[Rollout, ...] = field(default=(), repr=False)

    def metrics(self) -> dict[str, float]:
        """Numbers by name: pass@k, mean_tokens, truncated, problems, samples."""
        values = {f"pass@{k}": mean_pass_at_k(self.correct, k) for k in self.ks}
        if self.reflected is not None:
            values["pass@1_after_reflection"] = float(self.reflected.mean())
        return values | {
            "mean_tokens": float(self.tokens.mean()),
            "truncated": float(self.truncated.mean()),
            "problems": float(len(self.uids)),
            "samples": float(self.correct.shape[1]),
        }

    def share_correct(self) -> dict[str, float]:
        """By problem: the share of its samples that are correct."""
        return dict(zip(self.uids, self.correct.mean(axis=1).tolist(), strict=True))


def evaluate_policy(
    play: Play, uids: Sequence[str], settings: Any, training: Sampling, seed: int, truncator: AttemptTruncator | None
) -> Evaluation:
    """Sample every held-out problem `settings.samples` times with the same seeds at each evaluation.

    Args:
        play: plays requests, in order of their ids.
        uids: the held-out problems.
        settings: the `evaluation` section.
        training: how training samples; the section's own temperature and top_p replace its.
        seed: of the run.
        truncator: of the answers that get a second turn; None: none gets one.

    Raises:
        EveryEpisodeFailed: the environment failed in all first turns.
    """
    uids = held_out_sample(uids, settings.limit)
    samples = settings.samples
    sampling = evaluation_sampling(settings, training)
    seeds = request_seeds(seed, 0, RngStream.EVALUATION, 2 * len(uids) * samples)
    requests = [
        Request(i, Prompt(uids[i // samples]), i // samples, seeds[i], sampling, Split.EVALUATION)
        for i in range(len(uids) * samples)
    ]
    rollouts = play(requests)
    refuse_if_all_failed(rollouts)
    shape = (len(uids), samples)
    correct = np.array([rollout.correct for rollout in rollouts]).reshape(shape)
    reflected = None
    if truncator is not None:
        reflected = _after_reflection(play, requests, rollouts, seeds, truncator).reshape(shape)
    return Evaluation(
        uids=tuple(uids),
        correct=correct,
        tokens=np.array([rollout.response_length for rollout in rollouts]).reshape(shape),
        truncated=np.array([rollout.truncated for rollout in rollouts]).reshape(shape),
        ks=tuple(settings.k),
        reflected=reflected,
        rollouts=tuple(rollouts),
    )


def evaluation_sampling(settings: Any, training: Sampling) -> Sampling:
    """How an evaluation samples: as training does, but for what the `evaluation` section says of its own."""
    return replace(
        training,
        temperature=training.temperature if settings.temperature is None else settings.temperature,
        top_p=training.top_p if settings.top_p is None else settings.top_p,
    )


def held_out_sample(uids: Sequence[str], limit: int | None) -> list[str]:
    """At most `limit` problems, evenly spaced: data is often sorted by difficulty."""
    if limit is None or limit >= len(uids):
        return list(uids)
    return [uids[i * len(uids) // limit] for i in range(limit)]


def make_truncator(config: Any, tokenizer: Any, environment: Any, context: int | None) -> AttemptTruncator | None:
    """What shortens attempts for the second turns of an evaluation; None where `evaluation.reflection` is off."""
    if not config.evaluation_settings.reflection:
        return None
    return AttemptTruncator.of(config, tokenizer, environment.unwrapped.reflection_guidance, context=context)


def failed_attempt(rollout: Rollout, truncator: AttemptTruncator) -> Attempt:
    """A rollout as the failed attempt of a second turn that has room for its answer."""
    text = rollout.messages[-1]["content"] if rollout.messages else ""
    return truncator.truncate(attempt_of(rollout.tokens, rollout.prompt_length, text))


def _after_reflection(
    play: Play,
    requests: Sequence[Request],
    rollouts: Sequence[Rollout],
    seeds: Sequence[int],
    truncator: AttemptTruncator,
) -> np.ndarray:
    """Bool [requests]: correct at first, or in a second turn that follows the failed first one."""
    correct = np.array([rollout.correct for rollout in rollouts])
    failed = [i for i, rollout in enumerate(rollouts) if not rollout.correct and rollout.error is None]
    again = [
        replace(
            requests[i],
            id=n,
            seed=seeds[len(requests) + i],
            prompt=Prompt(requests[i].uid, Context.REFLECTION, failed_attempt(rollouts[i], truncator)),
        )
        for n, i in enumerate(failed)
    ]
    for index, rollout in zip(failed, play(again) if again else [], strict=True):
        correct[index] = rollout.correct
    return correct
