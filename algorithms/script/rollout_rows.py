"""A step's groups as rows for people: the rollout file and TensorBoard's conversations."""

from collections.abc import Sequence

from algorithms.grpo.groups import Group
from algorithms.rollout.types import Rollout
from algorithms.runs.rollout_files import RolloutRow


def rollout_rows(step: int, groups: Sequence[Group]) -> list[RolloutRow]:
    """Every sample of every group, replayed ones included."""
    return [
        RolloutRow(
            step=step,
            uid=sample.rollout.uid,
            group=index,
            context=str(sample.rollout.context),
            prompt=_prompt(sample.rollout, group),
            response=sample.rollout.messages[-1]["content"] if sample.rollout.messages else "",
            reward=sample.training_reward,
            advantage=sample.advantage,
            correct=sample.rollout.correct,
            truncated=sample.rollout.truncated,
            verdict=sample.rollout.verdict,
            tokens=sample.rollout.response_length,
            replayed=sample.replayed,
        )
        for index, group in enumerate(groups)
        for sample in group.samples
    ]


def sample_conversations(groups: Sequence[Group], count: int) -> list[Rollout]:
    """The first fresh rollout of a few groups, reflections first: they are rarer."""
    ordered = sorted(groups, key=lambda group: group.prompt.attempt is None)
    return [group.samples[0].rollout for group in ordered[:count]]


def _prompt(rollout: Rollout, group: Group) -> str:
    """Everything before the last response; a replayed sample shows the prompt of the group it joined."""
    messages = rollout.messages if len(rollout.messages) > 1 else group.samples[0].rollout.messages
    return "\n\n".join(message["content"] for message in messages[:-1])
