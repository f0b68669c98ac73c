"""Conversations as text, and parts of their tokens. A training rollout holds the policy's own turns as tokens only."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from algorithms.rollout.types import NEW_CONTEXT, Rollout, Written
from r3env.reasoning import response_text

if TYPE_CHECKING:  # slow to import, and the mathematics of the step have no use for it
    from transformers import PreTrainedTokenizerBase

GAP_TEXT = "\n[...]\n"  # in place of what is cut out of a text


def conversation(rollout: Rollout, tokenizer: "PreTrainedTokenizerBase | None" = None) -> tuple[dict[str, str], ...]:
    """Return all turns of a rollout, the policy's own decoded.

    Args:
        rollout: of training or of an evaluation.
        tokenizer: of the policy; an evaluation's rollout, whose turns are text, needs none.

    Raises:
        ValueError: a turn has to be decoded, and there is no tokenizer.
    """
    return tuple(
        {"role": "assistant", "content": decoded(rollout.tokens, message, tokenizer)}
        if isinstance(message, Written)
        else message
        for message in rollout.messages
    )


def last_text(rollout: Rollout, tokenizer: "PreTrainedTokenizerBase | None" = None) -> str:
    """Return the last turn of a rollout as text; empty where it has no conversation. See `conversation`."""
    if not rollout.messages:
        return ""
    last = rollout.messages[-1]
    return decoded(rollout.tokens, last, tokenizer) if isinstance(last, Written) else last["content"]


def last_written(loss_mask: np.ndarray) -> Written:
    """Return where the policy's last turn is: the last run of True in a mask, bool [T]."""
    own = np.flatnonzero(loss_mask)
    if not len(own):
        return Written(len(loss_mask), len(loss_mask))
    gaps = np.flatnonzero(np.diff(own) > 1)
    return Written(int(own[gaps[-1] + 1] if len(gaps) else own[0]), int(own[-1]) + 1)


def last_context(tokens: np.ndarray) -> int:
    """Return where the last context of a rollout's tokens starts, int32 [T]; most rollouts have one context."""
    places = np.flatnonzero(tokens == NEW_CONTEXT)
    return int(places[-1]) + 1 if len(places) else 0


def is_finished(rollout: Rollout) -> bool:
    """Return whether the policy ended its last turn itself, with nothing after it."""
    return bool(len(rollout.loss_mask)) and not rollout.truncated and bool(rollout.loss_mask[-1])


def extended(rollout: Rollout, token: int) -> Rollout:
    """Return the last context of a rollout with one more token, which counts as the only one that the policy wrote."""
    tokens = np.append(rollout.tokens[last_context(rollout.tokens) :], np.int32(token)).astype(np.int32)
    mask = np.zeros(len(tokens), bool)
    mask[-1] = True
    return replace(
        rollout, tokens=tokens, loss_mask=mask, sampling_logprobs=np.zeros(1, np.float32), versions=(), turns=()
    )


def decoded(tokens: np.ndarray, turn: Written, tokenizer: "PreTrainedTokenizerBase | None") -> str:
    """Return a turn of tokens, int32 [T], as text; see `conversation`."""
    if tokenizer is None:
        raise ValueError("the policy's turns of a training rollout are tokens: a tokenizer has to decode them")
    return response_text(tokenizer, tokens[turn.start : turn.end].tolist())
