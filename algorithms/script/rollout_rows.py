"""A step's groups as rows for people: the rollout file and TensorBoard's conversations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.grpo.groups import Group, Sample
from algorithms.rollout.types import Rollout
from algorithms.runs.rollout_files import RolloutRow, TokenData
from algorithms.script.token_pieces import TokenPieces


def rollout_rows(
    step: int, groups: Sequence[Group], tokenizer: Any, pieces: TokenPieces | None = None
) -> list[RolloutRow]:
    """Every sample of every group, replayed ones included.

    Args:
        step: training step, from 1.
        groups: of the step.
        tokenizer: the policy's.
        pieces: cuts responses at their tokens; None leaves out what is known of each token.
    """
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
            outcome_reward=sample.reward,
            ranking_reward=sample.ranking_reward,
            turns=sample.rollout.messages[:-1],
            turn_lengths=_turn_lengths(sample.rollout.loss_mask),
            token_data=None if pieces is None else _token_data(sample, pieces),
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


def _turn_lengths(loss_mask: np.ndarray) -> tuple[int, ...]:
    """Lengths of the runs of policy tokens."""
    edges = np.flatnonzero(np.diff(loss_mask.astype(np.int8), prepend=0, append=0))
    return tuple((edges[1::2] - edges[::2]).tolist())


def _token_data(sample: Sample, pieces: TokenPieces) -> TokenData:
    rollout, logprobs = sample.rollout, sample.behaviour_logprobs
    return TokenData(
        pieces=pieces.of(rollout.response_tokens.tolist()),
        logprobs=(rollout.engine_logprobs if logprobs is None else logprobs)[rollout.loss_mask],
        entropies=None if sample.entropies is None else sample.response_entropies,
    )
