"""R³-GRPO's stages on groups made by hand: no engine, no learner, no Ray."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import pytest

from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.grpo.registry import build_mechanisms
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.history.store import ReplayHistory
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.attempts import attempt_of
from algorithms.rollout.types import Attempt, Context, Rollout
from r3env.core import Query

MechanismT = TypeVar("MechanismT", bound=Mechanism)

PROMPT = (1, 2)
ATTEMPT = Attempt(np.array(PROMPT, np.int32), np.array([50, 51], np.int32), "fifty")
REFLECTION_PROMPT = (*PROMPT, 50, 51, 90)


def logprob_under(prompt: Sequence[int]) -> float:
    """What the stub's policy gives every token that follows a prompt: another number for another prompt."""
    return -sum(prompt) / 100


def score(samples: Sequence[Sample], *, entropy: bool = False) -> None:
    """Fill in the log-probs of the stub's policy."""
    for one in samples:
        under = logprob_under(one.rollout.tokens[: one.rollout.prompt_length].tolist())
        one.old_logprobs = np.full(one.rollout.response_length, under, np.float32)


def fake_services(config: R3GRPOConfig) -> Services:
    """What mechanisms ask for: a history that keeps everything, the stub's policy, attempts that stay whole."""
    return Services(
        config=config,
        seed=0,
        uids=["q"],
        query=lambda uid: Query(uid, "?", "!"),
        score=score,
        truncator=lambda limit: SimpleNamespace(
            attempt=lambda tokens, mask, text, said: attempt_of(tokens, int(mask.argmax()), text, said),
            truncate=lambda attempt: attempt,
        ),
        opened_history=ReplayHistory(capacity=None, dedupe=False),
    )


class StubR3(R3GRPO):
    """The stages without what RLlib builds: the enabled mechanisms with fake services."""

    def __init__(self, config: R3GRPOConfig) -> None:
        self.config, self.seed, self.steps_done = config, 0, 5
        self.services = fake_services(config)
        self.history = self.services.history
        self.active = build_mechanisms(self.mechanisms, self.services)
        self.score_samples = score

    def the(self, kind: type[MechanismT]) -> MechanismT:
        """Return the enabled mechanism of a class."""
        (found,) = (mechanism for mechanism in self.active if isinstance(mechanism, kind))
        return found

    def metric(self, tag: str) -> float:
        """Return what a mechanism reports of the running step."""
        (value,) = (mechanism.metrics[tag] for mechanism in self.active if tag in mechanism.metrics)
        return value


@pytest.fixture
def stub() -> Callable[..., StubR3]:
    """Builds stubs from settings by section; the history keeps everything."""

    def make(**sections: dict) -> StubR3:
        return StubR3(R3GRPOConfig().apply(sections))

    return make


def batch_of(*groups: Group, dropped: Sequence[Group] = ()) -> StepBatch:
    """A step's batch of these groups."""
    return StepBatch(5, groups=list(groups), dropped=list(dropped))


def mixed_group() -> Group:
    """Three failures, and a stored success."""
    return plain_group(sample([10]), sample([11]), sample([12]), sample([30], True, replayed=True))


def advantages(algorithm: StubR3, group: Group) -> list[float]:
    """The advantages that the algorithm gives a group's samples."""
    algorithm.compute_advantages(batch_of(group))
    return [one.advantage for one in group.samples]


def finish(algorithm: StubR3, *groups: Group, dropped: Sequence[Group] = ()) -> StepBatch:
    """Take a step from the last look before the update to the history; returns its batch."""
    batch = batch_of(*groups, dropped=dropped)
    for mechanism in algorithm.active:
        mechanism.before_update(batch)
    algorithm.score_samples(algorithm.untrained_samples(batch))
    algorithm.update_history(batch)
    algorithm.finish_history(batch)
    return batch


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
        sampling_logprobs=np.zeros(len(response), np.float32),
        reward=float(correct),
        correct=correct,
        truncated=truncated,
        verdict="equal" if correct else "different",
        weights_version=0,
        messages=({"role": "user", "content": "?"}, {"role": "assistant", "content": str(response)}),
    )
    logprobs = np.full(len(response), logprob_under(prompt) if logprob is None else logprob, np.float32)
    return Sample(rollout, reward=float(correct), old_logprobs=logprobs, replayed=replayed)


def reflected(response: Sequence[int], correct: bool = False, **settings) -> Sample:
    """An answer to the reflection prompt of query `q`."""
    return sample(response, correct, prompt=REFLECTION_PROMPT, **settings)


def plain_group(*samples: Sample) -> Group:
    return Group(Prompt("q"), list(samples))


def reflection_group(*samples: Sample) -> Group:
    return Group(Prompt("q", Context.REFLECTION, attempt=ATTEMPT), list(samples))


def stored(history: ReplayHistory, uid: str = "q") -> list:
    """Every entry of a query, successes first."""
    return history.entries(uid, correct=True) + history.entries(uid, correct=False)
