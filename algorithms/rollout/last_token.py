"""One more token after a finished response, whose log-prob is a judgment of it."""

from dataclasses import replace

import numpy as np

from algorithms.rollout.conversation import last_context
from algorithms.rollout.types import Rollout


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
