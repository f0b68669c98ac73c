"""When rollouts are played: in their own step, or one step ahead while the learners work.

One step ahead, a step trains on rollouts of the policy before the last update. Nothing else has to know: the ratio of
the loss is that of the new policy to the one at the step's start, whose log-probs the scoring pass or the first
optimizer step measures, so that its clip bounds what this step changes. What lies between the policy that sampled and
the one at the step's start is the importance weight of `training.importance_cap`: it divides by the engine's own log-probs.
The two factors are those of decoupled PPO (J. Hilton et al., arXiv 2110.00641); the second one is truncated. The
history keeps the log-probs at the step's start, for these rollouts too: one update after the policy that sampled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.rollout.types import Request, Rollout, Sampling, Split
from algorithms.rollout.workers import RolloutWorkers


@dataclass(frozen=True)
class Batch:
    """The prompts of a step, and the episodes that are played for them."""

    prompts: Sequence[Prompt]
    requests: Sequence[Request]


@dataclass(frozen=True)
class PlayedBatch:
    """A batch with its rollouts.

    Args:
        lag: training steps between the policy that sampled it and the one that it trains.
    """

    batch: Batch
    rollouts: list[Rollout]
    lag: int


class Pipeline(Protocol):
    """Which batch a step trains on, and when the next one is played.

    Attributes:
        ahead: steps between the one that is running and the one that prompts are now built for.
    """

    ahead: int

    def due(self, batch: Batch) -> PlayedBatch:
        """Take the batch whose prompts were built last; returns the one that this step trains on."""
        ...

    def begin_next(self, build: Callable[[], Batch]) -> None:
        """Begin with the next step's rollouts if that is to happen in this step; `build` makes its batch."""
        ...

    def settle(self) -> None:
        """Wait until nothing is being played: the weights are about to change."""
        ...

    def position(self, *, before: int, after: int) -> int:
        """Where a resumed run takes up the queries, given where the last batch of them begins and ends."""
        ...


class OnPolicy:
    """A step plays its own batch, with the policy that it trains."""

    ahead = 0

    def __init__(self, runners: RolloutWorkers) -> None:
        self._runners = runners

    def due(self, batch: Batch) -> PlayedBatch:
        """Play the batch now."""
        return PlayedBatch(batch, self._runners.rollout(batch.requests), lag=0)

    def begin_next(self, build: Callable[[], Batch]) -> None:
        """Nothing: the next batch waits for the next policy."""

    def settle(self) -> None:
        """Nothing is being played."""

    def position(self, *, before: int, after: int) -> int:
        """After the last batch: it has been trained on."""
        return after


class OneStepAhead:
    """A step trains on what was played during the one before, and the next batch is played meanwhile.

    The first step plays its own batch first. What has been played ahead is in no checkpoint: a resumed run plays that
    batch again, with the weights of the checkpoint, so it is not step for step the uninterrupted one.
    """

    def __init__(self, runners: RolloutWorkers) -> None:
        self._runners = runners
        self.ahead = 0
        self._next: Batch | None = None
        self._playing: Batch | None = None
        self._played: PlayedBatch | None = None

    def due(self, batch: Batch) -> PlayedBatch:
        """What the last step has played; `batch` will be the next one's."""
        if self._played is None:
            return PlayedBatch(batch, self._runners.rollout(batch.requests), lag=0)
        due, self._played, self._next = self._played, None, batch
        return due

    def begin_next(self, build: Callable[[], Batch]) -> None:
        """Begin to play the batch that was handed to `due`; in the first step, one more is built for this."""
        self.ahead = 1
        batch, self._next = self._next or build(), None
        self._runners.start(batch.requests)
        self._playing = batch

    def settle(self) -> None:
        """Wait for the batch that is being played."""
        if self._playing is not None:
            batch, self._playing = self._playing, None
            self._played = PlayedBatch(batch, self._runners.finish(), lag=1)

    def position(self, *, before: int, after: int) -> int:
        """Before the last batch, which has only been played, if that."""
        return before if self.ahead else after


def make_pipeline(max_off_policy_steps: int, runners: RolloutWorkers) -> Pipeline:
    """The pipeline of `training.max_off_policy_steps`."""
    return OneStepAhead(runners) if max_off_policy_steps else OnPolicy(runners)


@dataclass(frozen=True)
class Collection:
    """What a step has collected.

    Args:
        kept: the groups to train on, in the order in which they were asked.
        dropped: those that teach nothing, and what came in beyond the number wanted.
        refills: how often further queries were asked.
    """

    kept: list[Group]
    dropped: list[Group]
    refills: int


def refilled(
    groups: list[Group],
    refill: Callable[[int, int], list[Group]],
    informative: Callable[[Group], bool],
    *,
    wanted: int,
    max_resample_rounds: int,
) -> Collection:
    """Replace groups that teach nothing by those of further queries.

    A refill asks as many queries as the share of informative groups so far lets expect to be enough, and never more
    than `wanted`. After `max_resample_rounds` the step makes do with what it has, be it nothing.

    Args:
        groups: those of the step's own prompts.
        refill: given a number of queries and the number of the refill, from 1: asks the next queries of the epoch.
        informative: whether a group has anything to teach.
        wanted: informative groups to collect.
        max_resample_rounds: the most refills; 0 keeps all groups as they are.

    Source: DAPO, arXiv 2503.14476, section 3.2; the bound is ours.
    """
    if max_resample_rounds == 0:
        return Collection(groups, [], 0)
    asked, useful, refills = list(groups), [informative(group) for group in groups], 0
    while sum(useful) < wanted and refills < max_resample_rounds:
        refills += 1
        more = refill(_queries_needed(wanted, sum(useful), len(useful)), refills)
        asked += more
        useful += [informative(group) for group in more]
    kept = [group for group, teaches in zip(asked, useful, strict=True) if teaches][:wanted]
    chosen = {id(group) for group in kept}
    return Collection(kept, [group for group in asked if id(group) not in chosen], refills)


def _queries_needed(wanted: int, useful: int, asked: int) -> int:
    return min(wanted, math.ceil((wanted - useful) * asked / useful)) if useful else wanted


def make_requests(
    prompts: Sequence[Prompt], seeds: Sequence[int], sampling: Sampling, *, first_id: int = 0, first_group: int = 0
) -> list[Request]:
    """Ask every prompt equally often, as many requests as there are seeds.

    Args:
        prompts: each makes a group.
        seeds: one a request, those of a prompt in a row; their number is a multiple of the prompts'.
        sampling: how all are sampled.
        first_id: ids count from here.
        first_group: groups count from here.
    """
    size = len(seeds) // max(1, len(prompts))
    return [
        Request(
            first_id + i,
            prompts[i // size].uid,
            first_group + i // size,
            seed,
            sampling,
            Split.TRAIN,
            prompts[i // size].attempt,
        )
        for i, seed in enumerate(seeds)
    ]


def collect_groups(prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, first_group: int = 0) -> list[Group]:
    """Put rollouts in their prompts' groups; what could not be graded is left out, and a group without any."""
    groups = [Group(prompt) for prompt in prompts]
    for rollout in rollouts:
        if rollout.error is None and rollout.response_length:
            groups[rollout.group - first_group].samples.append(Sample(rollout, reward=rollout.reward))
    return [group for group in groups if group.samples]
