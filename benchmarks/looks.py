"""The color and line of an arm, the same in every figure."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Look(NamedTuple):
    """How an arm is drawn, in Matplotlib's terms."""

    color: str
    line: str


# Okabe and Ito's palette, distinguishable with any color vision; lines repeat it.
_BLACK, _RED, _BLUE, _GREEN, _PURPLE, _ORANGE, _SKY = _PALETTE = (
    "#000000",
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
_LINES = ("-", "--", ":", "-.")

NAMED = {
    "grpo": Look(_BLACK, "-"),
    "rlep": Look(_RED, "-"),
    "dapo": Look(_BLUE, "-"),
    "r3": Look(_GREEN, "-"),
    "ngrpo": Look(_PURPLE, "-"),
    "r3-flat": Look(_ORANGE, "-"),
    "rl_zvp": Look(_SKY, "-"),
    "grpo-two-turn": Look(_BLACK, "--"),
    "r3-no-ccr": Look(_RED, "--"),
    "r3-no-isr": Look(_BLUE, "--"),
    "r3-paper": Look(_GREEN, "--"),
    "r3-no-serr": Look(_PURPLE, "--"),
    "flat-penalty": Look(_ORANGE, "--"),
    "r3-random-rank": Look(_SKY, "--"),
    "grpo-slow": Look(_BLACK, ":"),
    "ccr": Look(_RED, ":"),
    "isr": Look(_BLUE, ":"),
    "serr": Look(_PURPLE, ":"),
}


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """Return arm → its look, in the order given.

    Named arms have theirs whatever else is drawn; each other one takes the next look that no named arm has.
    """
    taken = set(NAMED.values())
    free = itertools.cycle(look for line in _LINES for color in _PALETTE if (look := Look(color, line)) not in taken)
    return {arm: NAMED.get(arm) or next(free) for arm in dict.fromkeys(arms)}
