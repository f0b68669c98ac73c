"""A step's groups as rows for people: the rollout file and TensorBoard's conversations."""

from collections.abc import Sequence
from typing import Any

from algorithms.grpo.groups import Group
from algorithms.rollout.types import Rollout
from algorithms.runs.rollout_files import RolloutRow


def rollout_rows(step: int, groups: Sequence[Group], tokenizer: Any) -> list[RolloutRow]:
    """Every sample of every group, replayed ones included."""
    return [
        RolloutRow(
            step=step,
            uid=sample.rollout.uid,
            group=index,
            context=str(sample.rollout.context),
            prompt=_prompt(sample.rollout, tokenizer),
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


def _prompt(rollout: Rollout, tokenizer: Any) -> str:
    """Everything before the last response; of a replayed sample, the prompt that it was stored with."""
    if len(rollout.messages) > 1:
        return "\n\n".join(message["content"] for message in rollout.messages[:-1])
    return str(tokenizer.decode(rollout.tokens[: rollout.prompt_length].tolist(), skip_special_tokens=True))
