"""GMPO's objective: the geometric mean of a response's ratios, each clipped before the mean."""

from collections.abc import Sequence

import torch

from algorithms.losses.base import LossSettings, Objective, over_rows, token_log_ratio


class Gmpo(Objective):
    """`A · exp(mean_t c_t)` for each response, with `c_t` the log-ratio of token t, clipped.

    `c_t = min(log r_t, clip_high)` where the advantage is positive and `max(log r_t, -clip_low)` where it is negative:
    `clip_low` and `clip_high` bound log-ratios here. A single token that runs away moves the mean by its share of the
    response, where GRPO would weigh it with its whole ratio. GSPO's ratio is the same mean, clipped as a whole.

    With `loss_aggregation: response` it is the paper's mean over responses. Where advantages differ within a response,
    a token's own decides how it is clipped and multiplies the mean, and one of 0 counts as if it had not moved (ours).

    Source: GMPO, arXiv 2507.20673; the authors' code.
    """

    name = "gmpo"
    takes_dual_clip = takes_sequence_ratio = False
    shares_ratio = True

    def response_objective(
        self,
        ratio: torch.Tensor,
        logprobs: torch.Tensor,
        advantages: torch.Tensor,
        settings: LossSettings,
        lengths: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the objective, and the tokens whose log-ratio the clip bounds."""
        log_ratio = token_log_ratio(ratio, logprobs)
        bounded = log_ratio.clamp(-settings.clip_low, settings.clip_high)
        sign = advantages.sign()
        counted = sign * torch.minimum(sign * log_ratio, sign * bounded)
        means = over_rows(torch.mean, counted, lengths)
        return means.exp() * advantages, sign * bounded < sign * log_ratio
