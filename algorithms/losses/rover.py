"""ROVER's loss: the log-ratio of each token learns a target, the Q-value of a uniformly random policy."""

import torch

from algorithms.losses.base import LossTerm


class Rover(LossTerm):
    """`(q - target)²`, `q = log π - log π_old`, `target = A + V(next token)`, without gradient.

    `V` is the mean over the vocabulary of `log π - log π_old` at the response's next token, and 0 behind the last: the
    value of a policy that is uniformly random. Where the policy has not moved, the gradient is that of `-2·A·log π`.

    Source: ROVER, arXiv 2509.24981; the authors' code.
    """

    name = "rover"

    def token_loss(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        next_vocabulary_logprobs: torch.Tensor,
        old_next_vocabulary_logprobs: torch.Tensor,
    ) -> torch.Tensor:
        """Return the squared errors, float [N]."""
        target = advantages + next_vocabulary_logprobs - old_next_vocabulary_logprobs
        return (logprobs - old_logprobs - target.detach()).square()
