"""The policy loss of some tokens, as the update sums it."""

from algorithms.losses.base import LossSettings


def policy_loss(logprobs, old_logprobs, advantages, weights, *, settings: LossSettings, lengths, importance=None):
    """The loss, a scalar, and how many tokens the objective clipped."""
    losses, clipped = settings.objective_instance.token_losses(logprobs, old_logprobs, advantages, settings, lengths)
    scale = weights.detach() if importance is None else weights.detach() * importance.detach()
    return (scale * losses).sum(), {"clipped": clipped.sum()}
