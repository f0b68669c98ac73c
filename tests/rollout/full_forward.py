"""Log-probs by one plain forward pass over the whole sequence: what engines are checked against."""

from typing import Any

import numpy as np
import torch


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
