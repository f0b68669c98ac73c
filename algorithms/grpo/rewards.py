"""The outcome reward."""


def length_bonus_reward(correct: bool, length: int, *, w_len: float, l_max: int) -> float:
    """Reward a correct response, more if it is short: `c · (1 + w_len · max(0, 1 - length / l_max))`.

    Args:
        correct: verified, and finished within the length limit: a truncated response never counts as correct.
        length: response tokens.
        w_len: weight of the bonus; 0 leaves plain correctness.
        l_max: length in tokens from which there is no bonus.

    Returns:
        0.0 for a wrong response, otherwise between 1 and `1 + w_len`.

    Raises:
        ValueError: `length` is negative, or `l_max` is not positive.

    Source: arXiv 2601.19620, with `w_len = 1` and `l_max = 32768`.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    if l_max <= 0:
        raise ValueError(f"l_max must be positive, got {l_max}")
    if not correct:
        return 0.0
    return 1.0 + w_len * max(0.0, 1.0 - length / l_max)
