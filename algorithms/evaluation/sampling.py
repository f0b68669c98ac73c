"""Sample held-out problems, optionally with a second attempt after an incorrect answer: in training and the command."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from algorithms.config.base import BaseConfig
from algorithms.config.sections import EvaluationSettings
from algorithms.evaluation.metrics import Metrics, summarize
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.conversation import last_text
from algorithms.rollout.failures import FailureWatch, ToolWatch, refuse_if_all_failed
from algorithms.rollout.types import (
    Attempt,
    Context,
    Prompt,
    Request,
    Rollout,
    Sampling,
    Split,
)
from algorithms.utils.rng import RngStream, request_seeds

_logger = logging.getLogger(__name__)

RolloutFunction = Callable[[Sequence[Request]], list[Rollout]]


@dataclass(frozen=True)
class Draw:
    """The answer that a seed is for.

    Args:
        problem: position among the problems that are sampled together.
        uid: the problem.
        sample: which of its answers.
        second: whether it is the second try after that answer.
    """

    problem: int
    uid: str
    sample: int
    second: bool = False


@dataclass(frozen=True)
class Answer:
    """The result of one sample of a problem.

    Args:
        sample: which of the problem's answers.
        first: the answer.
        second: the second try after a wrong one; None where there was none.
        tried_again: whether wrong answers got a second try.
    """

    sample: int
    first: Rollout
    second: Rollout | None
    tried_again: bool

    @property
    def uid(self) -> str:
        """The problem."""
        return self.first.uid

    @property
    def correct(self) -> bool:
        """Whether the first answer is correct."""
        return self.first.correct

    @property
    def truncated(self) -> bool:
        """Whether the first answer is truncated."""
        return self.first.truncated

    @property
    def failed(self) -> bool:
        """Whether nothing is known of the first answer; it counts as incorrect."""
        return self.first.error is not None

    @property
    def answer(self) -> str | None:
        """What was read from the first answer as final; None where nothing was."""
        return self.first.answer

    @property
    def verdict(self) -> str:
        """The grader's reason for its judgment of the first answer."""
        return self.first.verdict

    @property
    def tokens(self) -> int:
        """Length of the first answer."""
        return self.first.response_length

    @property
    def reflected_correct(self) -> bool | None:
        """Whether it is correct at first or on the second attempt; None without second attempts."""
        if not self.tried_again:
            return None
        return self.first.correct or (self.second is not None and self.second.correct)


def _watches() -> tuple[FailureWatch, ToolWatch]:
    return FailureWatch("evaluation", "They count as incorrect"), ToolWatch("evaluation")


@dataclass
class Sampler:
    """Samples every problem several times.

    Args:
        rollout: runs requests; rollouts come back in the order of their ids.
        samples: answers per problem.
        sampling: how they are sampled.
        seed_of: the seed of each answer.
        truncator: shortens wrong answers in front of a second try; None: there are no second tries.
        watches: warn of tries that failed, and of tools that mostly fail.
        answered: whether a first try has not failed yet, in any of its calls.
    """

    rollout: RolloutFunction
    samples: int
    sampling: Sampling
    seed_of: Callable[[Draw], int]
    truncator: AttemptTruncator | None = None
    watches: tuple[FailureWatch, ToolWatch] = field(default_factory=_watches)
    answered: bool = False

    def sample(self, uids: Sequence[str]) -> list[list[Answer]]:
        """Return the answers to each problem.

        Raises:
            EpisodesFailed: all first tries failed, in this call and those before.
        """
        draws = [Draw(problem, uid, n) for problem, uid in enumerate(uids) for n in range(self.samples)]
        requests = [self._request(number, draw, Prompt(draw.uid)) for number, draw in enumerate(draws)]
        first = self.rollout(requests)
        if not self.answered:
            refuse_if_all_failed(first)
            self.answered = any(rollout.error is None for rollout in first)
        second = self._second_tries(draws, first) if self.truncator else {}
        for watch in self.watches:
            if warning := watch.observe([*first, *second.values()]):
                _logger.warning(warning)
        answers = [
            Answer(draw.sample, rollout, second.get(number), self.truncator is not None)
            for number, (draw, rollout) in enumerate(zip(draws, first, strict=True))
        ]
        return [answers[start : start + self.samples] for start in range(0, len(answers), self.samples)]

    def _second_tries(self, draws: Sequence[Draw], first: Sequence[Rollout]) -> dict[int, Rollout]:
        """Return the second tries by the position of the wrong answer; one that was not graded gets none."""
        wrong = [number for number, rollout in enumerate(first) if not rollout.correct and rollout.error is None]
        requests = [
            self._request(
                n,
                replace(draws[number], second=True),
                Prompt(draws[number].uid, Context.REFLECTION, self._attempt(first[number])),
            )
            for n, number in enumerate(wrong)
        ]
        return dict(zip(wrong, self.rollout(requests) if requests else [], strict=True))

    def _request(self, number: int, draw: Draw, prompt: Prompt) -> Request:
        sampling = replace(self.sampling, asked_token=None) if draw.second else self.sampling
        return Request(number, prompt, draw.problem, self.seed_of(draw), sampling, Split.EVALUATION)

    def _attempt(self, rollout: Rollout) -> Attempt:
        """Return a rollout as the attempt of a second turn that has room for its answer."""
        assert self.truncator is not None
        text = last_text(rollout)
        attempt = self.truncator.attempt(rollout.tokens, rollout.loss_mask, text, rollout.feedback)
        return self.truncator.truncate(attempt)


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one of training's evaluations.

    Args:
        uids: the problems.
        answers: to each problem.
        ks: for which k pass@k is reported.
    """

    uids: tuple[str, ...]
    answers: tuple[tuple[Answer, ...], ...] = field(repr=False)
    ks: tuple[int, ...]

    def metrics(self) -> Metrics:
        """Return numbers by name, see `summarize`, and `reward`, the environment's, with partial credit.

        `distinct` is the share of different ones among all answers.
        """
        written = [answer.first.tokens[answer.first.loss_mask].tobytes() for own in self.answers for answer in own]
        rewards = [answer.first.reward for own in self.answers for answer in own]
        extra = {"reward": sum(rewards) / len(rewards), "distinct": len(set(written)) / len(written)}
        return summarize(self.answers, self.ks) | extra

    def share_correct(self) -> dict[str, float]:
        """Return the share of a problem's samples that are correct, by problem."""
        return {
            uid: sum(answer.correct for answer in answers) / len(answers)
            for uid, answers in zip(self.uids, self.answers, strict=True)
        }


def evaluate_policy(
    rollout: RolloutFunction,
    uids: Sequence[str],
    settings: EvaluationSettings,
    training: Sampling,
    seed: int,
    truncator: AttemptTruncator | None,
) -> Evaluation:
    """Sample every held-out problem `settings.samples` times, with the same seeds at each evaluation.

    Args:
        rollout: runs requests; rollouts come back in the order of their ids.
        uids: the held-out problems.
        settings: the `evaluation` section.
        training: how training samples; the section's own settings replace its.
        seed: of the run.
        truncator: of the answers that get a second turn; None: none gets one.

    Raises:
        EpisodesFailed: all first turns failed.
    """
    uids, samples = held_out_sample(uids, settings.limit), settings.samples
    seeds = request_seeds(seed, 0, RngStream.EVALUATION, 2 * len(uids) * samples)

    def seed_of(draw: Draw) -> int:
        return seeds[draw.second * len(uids) * samples + draw.problem * samples + draw.sample]

    sampler = Sampler(rollout, samples, evaluation_sampling(settings, training), seed_of, truncator)
    return Evaluation(tuple(uids), tuple(map(tuple, sampler.sample(uids))), tuple(settings.k))


def evaluation_sampling(settings: EvaluationSettings, training: Sampling) -> Sampling:
    """Return how an evaluation samples: as training does, except for the settings of the `evaluation` section."""
    own = {key: getattr(settings, key) for key in ("temperature", "top_p", "top_k", "min_p", "stop")}
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
    return replace(training, **{key: value for key, value in own.items() if value is not None})


def held_out_sample(uids: Sequence[str], limit: int | None) -> list[str]:
    """Return at most `limit` problems, evenly spaced: data is often sorted by difficulty."""
    if limit is None or limit >= len(uids):
        return list(uids)
    return [uids[i * len(uids) // limit] for i in range(limit)]


def make_truncator(
    config: BaseConfig, tokenizer: Any, environment: Any, context: int | None
) -> AttemptTruncator | None:
    """Make the truncator of attempts for an evaluation's second turns; None where `evaluation.reflection` is off."""
    if not config.evaluation_settings.reflection:
        return None
    return AttemptTruncator.of(config, tokenizer, environment.unwrapped.reflection_guidance, context=context)
