"""The outcome reward: correctness, a bonus for brevity, a penalty near the length limit; and rewards of ranks."""

from typing import Any

import numpy as np


def added_rewards(config: Any) -> list[tuple[str, float, str]]:
    """Return the settings that change the environment's rewards: name, value, and the override that takes it back."""
    reward, training = config.reward_settings, config.training_settings
    found = (
        ("reward.length_bonus", reward.length_bonus, "reward.length_bonus=0"),
        ("reward.overlong_penalty", reward.overlong_penalty, "reward.overlong_penalty=0"),
        ("training.beta", training.beta if training.kl_in == "reward" else 0.0, "training.kl_in=loss"),
    )
    return [each for each in found if each[1]]


def length_bonus_reward(correct: bool, length: int, *, length_bonus: float, length_bonus_max_tokens: int) -> float:
    """Reward a correct response, more if it is short: `c · (1 + w · max(0, 1 - length / L))`; w is `length_bonus`.

    Args:
        correct: verified, and finished within the length limit: a truncated response never counts as correct.
        length: response tokens, of all turns together.
        length_bonus: weight of the bonus; 0 leaves plain correctness.
        length_bonus_max_tokens: length in tokens from which there is no bonus.

    Returns:
        0.0 for a wrong response, otherwise between 1 and `1 + length_bonus`.

    Raises:
        ValueError: `length` is negative, or `length_bonus_max_tokens` is not positive.

    Source: arXiv 2601.19620, with `length_bonus = 1` and `length_bonus_max_tokens = 32768`.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    if length_bonus_max_tokens <= 0:
        raise ValueError(f"length_bonus_max_tokens must be positive, got {length_bonus_max_tokens}")
    if not correct:
        return 0.0
    return 1.0 + length_bonus * max(0.0, 1.0 - length / length_bonus_max_tokens)


def overlong_penalty(length: int, *, limit: int, share: float, penalty: float) -> float:
    """Penalize length over the last `share` of the limit, from 0 at its beginning to `penalty` at the limit.

    With `B = share · limit`: `penalty · min(0, ((limit - B) - length) / B)`, and never below `-penalty`.

    Args:
        length: tokens of the response, of several turns of the longest one: each is cut off by itself.
        limit: tokens at which a turn is cut off.
        share: of the limit, in (0, 1].
        penalty: what a response at the limit loses; not negative.

    Returns:
        Between `-penalty` and 0.0, to be added to the reward.

    Raises:
        ValueError: an argument is out of range.

    Source: Eq. 13, DAPO, arXiv 2503.14476, where right is worth 1 and wrong -1; here they are worth 1 and 0, so that
        half its penalty is the same.
    """
    if length < 0 or limit < 1:
        raise ValueError(f"length must not be negative and limit at least 1, got {length} and {limit}")
    if not 0 < share <= 1 or penalty < 0:
        raise ValueError(f"share must be in (0, 1] and penalty not negative, got {share} and {penalty}")
    buffer = share * limit
    over = (length - (limit - buffer)) / buffer
    return -penalty * min(1.0, max(0.0, over))


def rank_rewards(ranks: np.ndarray, max_reward: float = 1.0) -> np.ndarray:
    """Pay ranks evenly: `max_reward · (1 - k / (N - 1))` for rank k of N, from 0; a response that is alone gets 0.

    Args:
        ranks: [N], ties as the mean of their ranks.
        max_reward: the best rank's reward.

    Returns:
        float64 [N].

    Source: SERR, arXiv 2601.19620; ArenaRL, arXiv 2601.06487.
    """
    count = len(ranks)
    return max_reward * (1.0 - np.asarray(ranks) / (count - 1)) if count > 1 else np.zeros(count)
