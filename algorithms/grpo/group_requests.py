"""From prompts to requests, and from their rollouts back to groups. Pure functions."""

from collections.abc import Sequence

from algorithms.grpo.groups import Group, Prompt, Sample
from algorithms.rollout.types import Request, Rollout, Sampling, Split


def group_requests(
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


def groups_of(prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, first_group: int = 0) -> list[Group]:
    """Put rollouts in their prompts' groups; what could not be graded is left out, and a group without any."""
    groups = [Group(prompt) for prompt in prompts]
    for rollout in rollouts:
        if rollout.error is None and rollout.response_length:
            groups[rollout.group - first_group].samples.append(Sample(rollout, reward=rollout.reward))
    return [group for group in groups if group.samples]
