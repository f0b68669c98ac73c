"""A step's data between stages: samples in groups, groups in a batch. No Ray, no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithms.history.entry import ReplayEntry
from algorithms.losses.term import POLICY, Term
from algorithms.rollout.conversation import last_written
from algorithms.rollout.types import Context, Prompt, Rollout, Written


@dataclass
class Sample:
    """A rollout in the stages of a step. Values per token are [L], over the tokens that the policy wrote.

    Args:
        reward: the outcome's scalar reward, length bonus and penalty included.
        length_penalty: the part of `reward` that a long response loses; not positive.
        shaped_reward: what a mechanism pays in the outcome's place; None: nothing.
        old_logprobs: float32 [L], of the policy at the step's start, or at the one it was stored in; None until scored.
        entropies: [L] in nats, float32 where a mechanism needs them, float16 where they are only written; else None.
        entropy: the sum of its tokens' entropies; None until measured.
        kl: estimate of its tokens' KL to the reference, in nats together, where the reward pays for it.
        kl_cost: what it pays; no part of `reward`, and never stored.
        advantages: float32 [L], or one number for all tokens.
        terms: the weights of its tokens in the terms of the loss that it takes part in, a number or float32 [L].
        inputs: what these terms read of each token, by name: a number or float32 [L].
        replayed: retrieved from history, not sampled in this step.
        borrowed: sampled in this step for another group, which counts it among its fresh ones.
        masked: left out of the loss, and still a member of its group.
        optional: whether the loss's mean leaves it out while its advantage is 0, see `is_counted`.
    """

    rollout: Rollout
    reward: float
    length_penalty: float = 0.0
    shaped_reward: float | None = None
    old_logprobs: np.ndarray | None = None
    entropies: np.ndarray | None = None
    entropy: float | None = None
    kl: float = 0.0
    kl_cost: float = 0.0
    advantages: "np.ndarray | float" = 0.0
    terms: "dict[Term, np.ndarray | float]" = field(default_factory=lambda: {POLICY: 1.0})
    inputs: "dict[str, np.ndarray | float]" = field(default_factory=dict)
    replayed: bool = False
    borrowed: bool = False
    masked: bool = False
    optional: bool = False

    def shed_entropies(self, *, keep: bool) -> None:
        """Keep its tokens' entropies in half precision, or not at all."""
        if self.entropies is not None:
            self.entropies = self.entropies.astype(np.float16) if keep else None

    @property
    def training_reward(self) -> float:
        """The reward that advantages are computed from."""
        return (self.reward if self.shaped_reward is None else self.shaped_reward) - self.kl_cost

    @property
    def advantage(self) -> float:
        """The mean advantage of its tokens."""
        return float(np.mean(self.advantages)) if np.size(self.advantages) else 0.0

    @property
    def is_counted(self) -> bool:
        """Whether the loss is a mean over it, too: a row that nothing is learned from would only dilute the others."""
        return not self.optional or bool(np.any(self.advantages))

    @property
    def is_finite(self) -> bool:
        """Whether its log-probs are finite: those of a policy that overflowed are not, and are not kept."""
        return self.old_logprobs is None or bool(np.isfinite(self.old_logprobs).all())


@dataclass
class Group:
    """The samples of one prompt, and what mechanisms added to them.

    Args:
        std_scale: α of Eq. 3, the factor on the standard deviation; a number, or float [G].
        std_floor: the least standard deviation to divide by.
        left_out: of the step's policy too, but not trained on; history and metrics count them.
    """

    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)
    std_scale: "float | np.ndarray" = 1.0
    std_floor: float = 0.0
    left_out: list[Sample] = field(default_factory=list)

    @property
    def fresh(self) -> list[Sample]:
        """The samples that this step's policy gave to the group's own prompt."""
        own = [sample for sample in self.samples if not sample.replayed and not sample.borrowed]
        return [*own, *self.left_out]

    @property
    def own_rollout(self) -> Rollout | None:
        """An answer to the group's own prompt, whatever mechanisms put among `samples`; None: none is left."""
        return next((sample.rollout for sample in self.fresh), None)

    @property
    def trained(self) -> list[Sample]:
        """The samples of this step's policy that are trained on, whatever their prompt."""
        return [sample for sample in self.samples if not sample.replayed]

    @property
    def homogeneous(self) -> bool:
        """Whether all are correct or all incorrect, judged by correctness and never by the shaped reward."""
        return len({sample.rollout.correct for sample in self.samples}) == 1

    @property
    def is_of_data(self) -> bool:
        """Whether its prompt poses a query of the data; what was written for a step is neither stored nor replayed."""
        return not self.prompt.problem

    @property
    def any_correct(self) -> bool:
        """Whether the group holds a correct response."""
        return any(sample.rollout.correct for sample in self.samples)


@dataclass
class StepBatch:
    """The data of a training step, the only data that its stages exchange.

    Args:
        step: training steps done before this one.
        lag: steps between the oldest policy that sampled one of its tokens and the one that is trained.
        groups: those to train on.
        dropped: those that dynamic sampling left out; history and metrics count them.
        for_history: samples that are stored beside the fresh ones.
        record: the step's metrics by TensorBoard tag.
    """

    step: int
    lag: int = 0
    groups: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)
    for_history: list[Sample] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def leave_out(self, context: str) -> None:
        """Train on no group of a context, such as one that only measures; history and metrics still count them."""
        self.dropped += [group for group in self.groups if group.prompt.context == context]
        self.groups = [group for group in self.groups if group.prompt.context != context]

    @property
    def rolled_out(self) -> list[Group]:
        """All groups of the step, trained on or not."""
        return [*self.groups, *self.dropped]

    @property
    def stored(self) -> list[Group]:
        """The groups whose fresh samples the history takes."""
        return [group for group in self.rolled_out if group.is_of_data]

    @property
    def fresh(self) -> Iterator[Sample]:
        """The samples of this step's policy, trained on or not."""
        return (sample for group in self.rolled_out for sample in group.fresh)

    def outcomes(self, context: str = Context.PLAIN) -> dict[str, np.ndarray]:
        """Return the correctness of each query's fresh responses to its prompts of a context, bool [n]."""
        found: dict[str, list[bool]] = {}
        for group in self.rolled_out:
            if group.prompt.context == context:
                found.setdefault(group.prompt.uid, []).extend(bool(sample.rollout.correct) for sample in group.fresh)
        return {uid: np.array(correct) for uid, correct in found.items() if correct}


def baseline_groups(groups: Sequence[Group]) -> list[Group]:
    """Join the groups that name the same baseline; a group without one stays alone."""
    joined: dict[object, Group] = {}
    for group in groups:
        key = group.prompt.baseline or id(group)
        if key in joined:
            joined[key] = Group(group.prompt, [*joined[key].samples, *group.samples])
        else:
            joined[key] = group
    return list(joined.values())


def to_entry(sample: Sample, step: int) -> ReplayEntry:
    """Make the history's entry of a fresh sample: its outcome reward, never one that a mechanism shaped.

    Text that can be decoded from its tokens is not stored.

    Raises:
        ValueError: the sample has no log-probs yet.
    """
    if sample.old_logprobs is None:
        raise ValueError("only samples with log-probs can be stored: they come from scoring or from the update")
    rollout = sample.rollout
    last = rollout.messages[-1] if rollout.messages else None
    return ReplayEntry(
        uid=rollout.uid,
        context=rollout.context,
        tokens=rollout.tokens,
        loss_mask=rollout.loss_mask,
        old_logprobs=sample.old_logprobs,
        reward=sample.reward,
        correct=rollout.correct,
        truncated=rollout.truncated,
        step=step,
        text=last["content"] if isinstance(last, dict) else "",
        feedback=rollout.feedback,
    )


def to_sample(entry: ReplayEntry, group: int) -> Sample:
    """Make a replayed member of a group of a stored entry, under its own stored prompt."""
    rollout = Rollout(
        request_id=-1,
        uid=entry.uid,
        group=group,
        context=entry.context,
        tokens=entry.tokens,
        loss_mask=entry.loss_mask,
        sampling_logprobs=np.zeros(len(entry.old_logprobs), np.float32),
        reward=entry.reward,
        correct=entry.correct,
        truncated=entry.truncated,
        verdict="replayed",
        weights_version=-1,
        messages=({"role": "assistant", "content": entry.text} if entry.text else last_written(entry.loss_mask),),
    )
    return Sample(rollout, reward=entry.reward, old_logprobs=entry.old_logprobs, replayed=True)


def with_prompt_of(sample: Sample, plain: Rollout, context: str = Context.PLAIN) -> Sample:
    """Return a response as if it had answered another rollout's prompt, without log-probs.

    Args:
        sample: whose later turns, if it has any, do not repeat its prompt.
        plain: an answer to that prompt, a plain one.
        context: that the history stores it under.
    """
    start, messages = sample.rollout.prompt_length, sample.rollout.messages
    prompt = plain.tokens[: plain.prompt_length]
    moved = len(prompt) - start
    mask = np.concatenate([np.zeros(len(prompt), bool), sample.rollout.loss_mask[start:]])
    rollout = Rollout(
        request_id=-1,
        uid=sample.rollout.uid,
        group=sample.rollout.group,
        context=context,
        tokens=np.concatenate([prompt, sample.rollout.tokens[start:]]),
        loss_mask=mask,
        sampling_logprobs=np.zeros(np.count_nonzero(mask), np.float32),
        reward=sample.rollout.reward,
        correct=sample.rollout.correct,
        truncated=sample.rollout.truncated,
        verdict=sample.rollout.verdict,
        weights_version=sample.rollout.weights_version,
        messages=tuple(last_written(mask) if isinstance(last, Written) else last for last in messages[-1:]),
        rewards=sample.rollout.rewards,
        turns=tuple(replace(turn, start=turn.start + moved, end=turn.end + moved) for turn in sample.rollout.turns),
    )
    return Sample(rollout, reward=sample.reward)
