"""When a number may differ from the reference: only where digits had to be cut off."""

from fractions import Fraction

DECIMAL_PLACES = 6  # to which math-verify rounds floats
_CLOSENESS = Fraction(1, 10_000)  # small numbers are not equal just because both round to zero


def may_be_rounded(gold: Fraction | None, answer: Fraction | None) -> bool:
    """Whether two different numbers may still be the same answer, one of them rounded.

    A finite decimal is no rounding of 1/2: it has to be 1/2. But it may be one of 1/3; and a reference with six or more
    decimals, such as 0.333333, may be one itself, if the answer has no end.

    Args:
        gold: The exact value of the reference, None if it is irrational.
        answer: That of the answer, None if it is irrational.
    """
    places = _decimal_places(gold)
    return places is None or (places >= DECIMAL_PLACES and _decimal_places(answer) is None)


def equal_when_rounded(gold: Fraction, answer: Fraction) -> bool:
    """Whether two rational numbers are equal but for a rounding that is due.

    Args:
        gold: The reference.
        answer: The answer to judge.
    """
    near = abs(gold - answer) <= _CLOSENESS * max(abs(gold), abs(answer))
    return near and may_be_rounded(gold, answer) and round(gold, DECIMAL_PLACES) == round(answer, DECIMAL_PLACES)


def _decimal_places(value: Fraction | None) -> int | None:
    """The decimals that it takes to write a number, None if there is no end to them."""
    if value is None:
        return None
    below, counts = value.denominator, []
    for factor in (2, 5):
        count = 0
        while below % factor == 0:
            below, count = below // factor, count + 1
        counts.append(count)
    return max(counts) if below == 1 else None
