"""R³-GRPO's stages on groups made by hand: no engine, no learner, no Ray."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.history.store import ReplayHistory
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.ranking import RewardOrderWatch, TruncationWatch
from algorithms.r3_grpo.reflection import ReflectionGain
from algorithms.rollout.types import Attempt, Context, Rollout

PROMPT = (1, 2)
ATTEMPT = Attempt(np.array(PROMPT, np.int32), np.array([50, 51], np.int32), "fifty")
REFLECTION_PROMPT = (*PROMPT, 50, 51, 90)


def logprob_under(prompt: Sequence[int]) -> float:
    """What the stub's policy gives every token that follows a prompt: another number for another prompt."""
    return -sum(prompt) / 100


class StubR3(R3GRPO):
    """The algorithm without what RLlib builds; its policy's log-probs are `logprob_under`."""

    def __init__(self, config: R3GRPOConfig) -> None:
        self.config, self.seed, self.steps_done, self.record = config, 0, 5, {}
        self.history = ReplayHistory(capacity=None, dedupe=False)
        self.metrics = SimpleNamespace(log_value=lambda *arguments, **keywords: None)
        self.queries, self.generated_tokens = SimpleNamespace(epoch=0), 0
        self.payoff = ReflectionGain()
        self.truncation_watch, self.pipeline = TruncationWatch(), SimpleNamespace(ahead=0)
        self.reward_order_watch = RewardOrderWatch(config.ranking_settings)

    def score_samples(self, samples, *, entropy=False):
        for sample in samples:
            mask = sample.rollout.loss_mask
            under = logprob_under(sample.rollout.tokens[: sample.rollout.prompt_length].tolist())
            sample.old_logprobs = np.where(mask, under, 0.0).astype(np.float32)


@pytest.fixture
def stub() -> Callable[..., StubR3]:
    """Builds stubs from settings by section; the history keeps everything."""

    def make(**sections: dict) -> StubR3:
        return StubR3(R3GRPOConfig().apply(sections))

    return make


def sample(
    response: Sequence[int],
    correct: bool = False,
    *,
    prompt: Sequence[int] = PROMPT,
    truncated: bool = False,
    replayed: bool = False,
    logprob: float | None = None,
) -> Sample:
    """A scored answer to query `q`; its context follows from the prompt."""
    tokens = np.array([*prompt, *response], np.int32)
    mask = np.arange(len(tokens)) >= len(prompt)
    rollout = Rollout(
        request_id=0,
        uid="q",
        group=0,
        context=Context.REFLECTION if tuple(prompt) == REFLECTION_PROMPT else Context.PLAIN,
        tokens=tokens,
        loss_mask=mask,
        sampling_logprobs=np.zeros(len(tokens), np.float32),
        reward=float(correct),
        correct=correct,
        truncated=truncated,
        verdict="equal" if correct else "different",
        weights_version=0,
        messages=({"role": "user", "content": "?"}, {"role": "assistant", "content": str(response)}),
    )
    logprobs = np.where(mask, logprob_under(prompt) if logprob is None else logprob, 0.0).astype(np.float32)
    return Sample(rollout, reward=float(correct), old_logprobs=logprobs, replayed=replayed)


def reflected(response: Sequence[int], correct: bool = False, **settings) -> Sample:
    """An answer to the reflection prompt of query `q`."""
    return sample(response, correct, prompt=REFLECTION_PROMPT, **settings)


def plain_group(*samples: Sample) -> Group:
    return Group(Prompt("q"), list(samples))


def reflection_group(*samples: Sample) -> Group:
    return Group(Prompt("q", ATTEMPT), list(samples))


def stored(history: ReplayHistory, uid: str = "q") -> list:
    """Every entry of a query, successes first."""
    return history.entries(uid, correct=True) + history.entries(uid, correct=False)
