"""Requests to env runners and the rollouts that they return: plain frozen data, numpy only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from algorithms.config.machine import EnvRunnerSettings

# In the tokens of a rollout: what follows has a context of its own, and does not see what stands before.
NEW_CONTEXT = -1

# Which weights sampled a text: (version, tokens) after one another, in the order of the tokens.
VersionSpans = tuple[tuple[int, int], ...]

# Verdicts of episodes without an answer: the last response is unfinished, or no context has room for another one.
TRUNCATED, CUT_OFF = "truncated", "cut_off"

OnProgress = Callable[[int, int], None]  # called with how many of how many rollouts are there


class Context(StrEnum):
    """The contexts that R³ itself uses; a method may name others."""

    PLAIN = "plain"
    REFLECTION = "reflection"
    DISTILLED = "distilled"  # a response to a reflection prompt, stored as one to the plain prompt


class Split(StrEnum):
    """Which of a runner's environments an episode runs in; a question is answered in none that judges it."""

    TRAIN = "train"
    EVALUATION = "evaluation"
    QUESTION = "question"


@dataclass(frozen=True)
class Attempt:
    """A finished attempt that a second turn follows, token for token.

    Args:
        prompt_tokens: int32 [P], the first turn's prompt as the policy saw it.
        response_tokens: int32 [L], what the policy wrote, possibly with its middle cut out.
        text: the response as text, for the environment and for people.
        feedback: the environment's on it, which the environment gets back.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    text: str
    feedback: str = ""


@dataclass(frozen=True)
class Prompt:
    """One prompt to sample a group for: a query, and what precedes its answer.

    Args:
        uid: the query, by the environment's own id.
        context: names what a response is conditioned on; any text.
        attempt: an earlier attempt, as a turn of its own in front of the user turn.
        hint: text that joins the user turn.
        response_prefix: int32 [B], the beginning of the assistant turn, which the policy continues; never trained on.
            It counts as a part of the response that `Sampling.max_response_tokens` limits.
        size: responses to sample; None: `training.group_size`.
        baseline: groups of a step that name the same one are normalized together; None: the group alone.
        greedy: whether each token is the most likely one, in place of sampling; to measure, not to train on.
        variant: another form of the query, by the environment's name for it; empty: the query itself.
        feedback: what the user turn after the attempt says; empty: the environment says it.
        problem: a text for this prompt alone in place of the query's problem, with the same answer; such responses are
            never stored.
        judged: whether the environment poses the problem and judges the response; else the policy is asked `problem`.
    """

    uid: str
    context: str = Context.PLAIN
    attempt: Attempt | None = None
    hint: str = ""
    response_prefix: np.ndarray | None = None
    size: int | None = None
    baseline: str | None = None
    greedy: bool = False
    variant: str = ""
    feedback: str = ""
    problem: str = ""
    judged: bool = True

    def in_form(self, variant: str) -> "Prompt":
        """Return the plain prompt of a variant, or of the query itself; a variant is a context of its name."""
        return replace(self, variant=variant, context=variant or Context.PLAIN)


@dataclass(frozen=True)
class Sampling:
    """How an engine samples tokens.

    Args:
        top_p: the smallest set of most likely tokens with this probability is kept.
        asked_token: its log-prob right behind a finished response is measured, at temperature 1; None: nothing is.
        top_k: so many most likely tokens are kept, before `top_p`; 0: all.
        min_p: tokens of at least this share of the most likely one's probability are kept, first of the three.
        stop: a response ends with the token that completes one of these texts.
        stop_token_ids: a response ends with one of these, too.
        chunk: tokens of a response's first chunk, see `algorithms.rollout.chunks`; None: a response is one chunk.
        max_context_tokens: where a context might exceed it, the policy writes a summary, see
            `algorithms.rollout.summaries`; None: contexts end with the model's.
        max_summaries: that the policy may write in an episode.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 64
    asked_token: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    chunk: int | None = None
    max_context_tokens: int | None = None
    max_summaries: int = 0

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):  # hashed by engines
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def of(cls, settings: "EnvRunnerSettings") -> "Sampling":
        """Return how the section `env_runners` samples."""
        return cls(
            settings.temperature,
            max_response_tokens=settings.max_response_tokens,
            stop=tuple(settings.stop),
            stop_token_ids=tuple(settings.stop_token_ids),
            chunk=settings.context_response if settings.response_chunks > 1 else None,
            max_context_tokens=settings.max_context_tokens,
            max_summaries=settings.max_summaries if settings.max_context_tokens else 0,
        )

    @property
    def truncated(self) -> bool:
        """Whether tokens are sampled from a part of the distribution; greedy decoding takes the most likely one."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass(frozen=True)
class Request:
    """One episode to run.

    Args:
        id: unique within a dispatch; rollouts come back sorted by it.
        prompt: what the policy answers.
        group: index of the prompt group that the episode belongs to.
        seed: seeds the episode's sampling, whatever runner runs it.
    """

    id: int
    prompt: Prompt
    group: int
    seed: int
    sampling: Sampling
    split: Split = Split.TRAIN

    @property
    def uid(self) -> str:
        """The query, by the environment's own id."""
        return self.prompt.uid

    @property
    def context(self) -> str:
        """What the response is conditioned on, by name."""
        return self.prompt.context


@dataclass(frozen=True)
class Turn:
    """What the policy wrote in one turn, and the environment's answer to it; a summary gets none.

    Args:
        start: `rollout.tokens[start:end]` are the policy's.
        end: see `start`.
        reward: what the environment paid for the turn.
        correct: verified, and finished within the length limit.
        feedback: the environment's `info["feedback"]`, else the user turn that followed; empty after a last turn.
        state: `info["state"]` of the observation that the turn answers; empty where the environment names none.
    """

    start: int
    end: int
    reward: float = 0.0
    correct: bool = False
    feedback: str = ""
    state: str = ""


@dataclass(frozen=True)
class Written:
    """A turn of the policy in a conversation, as tokens only: its text is decoded when it is written or quoted.

    Args:
        start: `rollout.tokens[start:end]` are the turn's.
        end: see `start`.
    """

    start: int
    end: int


@dataclass(frozen=True)
class Rollout:
    """An episode that has ended.

    Args:
        context: of the prompt.
        tokens: int32 [T], prompt and all turns; with `rl_module.earlier_turns: rendered` each later turn after
            `NEW_CONTEXT` and the conversation rendered anew; likewise a turn of an agent that went back or changed what
            stood before, and each further chunk of a response, after the prompt and its carryover;
            and what follows a summary, after the first prompt and the summary.
        loss_mask: bool [T], True on tokens that the policy wrote in this episode.
        sampling_logprobs: float32 [L], the engine's log-prob of each policy token at the sampling temperature.
        reward: what the environment paid in all turns, before shaping.
        correct: verified, and finished within the length limit.
        truncated: the last response hit the length limit, or the episode ran out of summaries.
        verdict: the grader's reason, or "environment_error".
        weights_version: of the oldest weights that sampled one of its tokens.
        messages: the conversation for people; of a training rollout the policy's own turns are `Written`, which
            `algorithms.rollout.conversation` decodes.
        error: set when the episode failed: its environment or agent raised, or grading failed or timed out. Training
            leaves it out, an evaluation counts it as incorrect.
        turns: of the policy, those that the environment has judged, and summaries.
        versions: of the weights that sampled each of the policy's tokens; empty: all are of `weights_version`.
        asked_logprob: of `Sampling.asked_token` behind the response; None: not asked, not finished, or no room for it.
        counts: what the environment counted in all turns, `info["counts"]`, such as calls of tools.
        rewards: what each part of the reward was in all turns, `info["rewards"]`, such as each reward function's; of a
            truncated turn too, which is paid nothing where the environment takes it for correct.
        calls: of tools, each with the tool's name and its error, which is empty where there was none; `info["calls"]`.
        answer: the final answer that the environment read from the last response, `info["answer"]`; None: it read none.
    """

    request_id: int
    uid: str
    group: int
    context: str
    tokens: np.ndarray
    loss_mask: np.ndarray
    sampling_logprobs: np.ndarray
    reward: float
    correct: bool
    truncated: bool
    verdict: str
    weights_version: int
    messages: tuple[dict[str, str] | Written, ...] = ()
    error: str | None = None
    turns: tuple[Turn, ...] = ()
    versions: VersionSpans = ()
    asked_logprob: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[tuple[str, str], ...] = ()
    answer: str | None = None

    @property
    def version_spans(self) -> VersionSpans:
        """The versions of all tokens that the policy wrote, also if there is only one."""
        return self.versions or ((self.weights_version, self.response_length),)

    @property
    def turn_correct(self) -> tuple[bool, ...]:
        """Correctness after each turn of the policy."""
        return tuple(turn.correct for turn in self.turns)

    @property
    def feedback(self) -> str:
        """The environment's on the last turn; empty where it said nothing."""
        return self.turns[-1].feedback if self.turns else ""

    @property
    def response_length(self) -> int:
        """Policy tokens over all turns."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def turn_lengths(self) -> tuple[int, ...]:
        """Policy tokens of each turn, each of which `Sampling.max_response_tokens` limits by itself."""
        if self.turns:
            return tuple(int(np.count_nonzero(self.loss_mask[turn.start : turn.end])) for turn in self.turns)
        edges = np.flatnonzero(np.diff(self.loss_mask.astype(np.int8), prepend=0, append=0))
        return tuple((edges[1::2] - edges[::2]).tolist())

    @property
    def response_tokens(self) -> np.ndarray:
        """int32 [L], the policy's tokens over all turns."""
        return self.tokens[self.loss_mask]

    @property
    def prompt_length(self) -> int:
        """Tokens before the policy's first one."""
        return int(self.loss_mask.argmax()) if self.loss_mask.any() else len(self.tokens)


@dataclass(frozen=True)
class RunnerReport:
    """What an env runner did in one `advance`.

    Args:
        rollouts: the episodes that ended, in the order in which they did.
        unfinished: episodes that the runner still holds.
        generated_tokens: tokens of the responses that ended.
        engine_seconds: time spent in the engine.
        grading: what the graders of the process have done so far, see `r3env.grading.statistics`.
        metrics: what RLlib's callbacks have logged since the last report, by split, for `MetricsLogger.aggregate`.
    """

    rollouts: tuple[Rollout, ...]
    unfinished: int
    generated_tokens: int
    engine_seconds: float
    grading: Mapping[str, int] = field(default_factory=dict)
    metrics: dict[Split, Any] = field(default_factory=dict)
