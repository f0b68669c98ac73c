"""What engines are checked against: log-probs by one plain forward pass over the whole sequence, or by the learner."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.rollout.types import Rollout


@torch.no_grad()
def distributions(policy: Any, prompt: np.ndarray, response: np.ndarray, temperature: float = 1.0) -> torch.Tensor:
    """float32 [L, V], the log-distribution that each response token was drawn from."""
    tokens = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))[None]
    logits = policy(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def logprobs(policy: Any, prompt: np.ndarray, response: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """float32 [L], the log-prob of each response token."""
    chosen = torch.from_numpy(response.astype(np.int64))[:, None]
    return distributions(policy, prompt, response, temperature).gather(-1, chosen)[:, 0].numpy()


def assert_the_learner_agrees(policy: Any, rollouts: Sequence[Rollout], temperature: float) -> None:
    """The learner computes the log-probs that the engine sampled with, in whatever contexts."""
    rows = [TrainingSample(rollout.tokens, rollout.loss_mask) for rollout in rollouts]
    scored = score(policy, rows, ForwardSettings(temperature=temperature), entropy=False)
    for rollout, (logprobs, _) in zip(rollouts, scored, strict=True):
        np.testing.assert_allclose(logprobs, rollout.sampling_logprobs, atol=5e-4)
