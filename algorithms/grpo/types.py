"""A step's data between stages: samples in groups. No Ray, no torch."""

from dataclasses import dataclass, field

import numpy as np

from algorithms.rollout.types import Attempt, Context, Rollout


@dataclass(frozen=True)
class Prompt:
    """One prompt to sample a group for: a query, plain or with a failed attempt in front."""

    uid: str
    attempt: Attempt | None = None

    @property
    def context(self) -> Context:
        """Plain, or reflection where there is an attempt."""
        return Context.REFLECTION if self.attempt else Context.PLAIN


@dataclass
class Sample:
    """A rollout on its way through the stages.

    Args:
        old_logprobs: float32 [T], aligned with `rollout.tokens` (0 off the loss mask); None until scored.
        entropies: float32 [T] in nats, aligned likewise; None where nothing needs them.
        reward: the outcome's scalar reward, length bonus included.
        ranking_reward: SERR's value, which trains in the outcome's place; None where nothing was ranked.
        replayed: retrieved from history, not sampled in this step.
    """

    rollout: Rollout
    reward: float
    old_logprobs: np.ndarray | None = None
    entropies: np.ndarray | None = None
    ranking_reward: float | None = None
    advantage: float = 0.0
    replayed: bool = False

    @property
    def training_reward(self) -> float:
        """What advantages are computed from."""
        return self.reward if self.ranking_reward is None else self.ranking_reward

    @property
    def response_entropies(self) -> np.ndarray:
        """float32 [L], the entropies of the policy's tokens only."""
        if self.entropies is None:
            raise ValueError("entropies were not computed for this sample: see GRPO.score_tokens")
        return self.entropies[self.rollout.loss_mask]


@dataclass
class Group:
    """The samples of one prompt, and what history added to them."""

    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)

    @property
    def homogeneous(self) -> bool:
        """All right or all wrong, judged on correctness and never on the shaped reward."""
        return len({sample.rollout.correct for sample in self.samples}) == 1

    @property
    def any_correct(self) -> bool:
        """Whether the group holds a correct response."""
        return any(sample.rollout.correct for sample in self.samples)
