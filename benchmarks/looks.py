"""The color, line and name of an arm, the same in every figure; and a figure of one panel."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator, PercentFormatter

from algorithms.train.curves import STYLE
from algorithms.utils.files import replaced_whole


class Look(NamedTuple):
    """The look of an arm, in Matplotlib's terms."""

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

# What a reader calls an arm, where its name is not that already.
TITLES = {
    "grpo": "GRPO",
    "rlep": "RLEP",
    "dapo": "DAPO",
    "r3": "R³ (our variant), by entropy",
    "ngrpo": "NGRPO",
    "r3-flat": "R³ (our variant), flat",
    "rl_zvp": "RL-ZVP",
    "grpo-two-turn": "GRPO, two turns",
    "r3-no-ccr": "R³ without replay",
    "r3-no-isr": "R³ without reflection",
    "r3-no-serr": "R³ without ranking",
    "r3-paper": "R³ to the letter",
    "grpo-slow": "GRPO, half the rate",
    "flat-penalty": "GRPO, flat penalty",
    "r3-random-rank": "R³ (our variant), at random",
    "ccr": "replay alone",
    "isr": "reflection alone",
    "serr": "ranking alone",
    "r3-laptop": "R³",
    "permuted": "rewards permuted",
    "finishing": "paid for finishing",
    "rover": "ROVER",
    "rep_exp": "RepExp",
    "delethink": "Delethink",
}


class Line(NamedTuple):
    """One arm of a figure.

    Args:
        runs: how many.
        values: [points].
        band: its lower and upper end, [2, points].
    """

    runs: int
    values: np.ndarray
    band: np.ndarray


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """Return arm → its look, in the order given.

    Named arms have theirs whatever else is drawn; each other one takes the next look that no named arm has.
    """
    taken = set(NAMED.values())
    free = itertools.cycle(look for line in _LINES for color in _PALETTE if (look := Look(color, line)) not in taken)
    return {arm: NAMED.get(arm) or next(free) for arm in dict.fromkeys(arms)}


def draw_lines(
    path: Path, labels: tuple[str, str], where: np.ndarray, lines: Mapping[str, Line], formatter: Formatter
) -> Path:
    """Draw shares from 0 in one panel, a line with its band per arm, the first on top; replace the PNG.

    Args:
        path: the PNG to write.
        labels: of the panel and its x-axis.
        where: places on the x-axis, [points].
        lines: arm → line.
        formatter: of the x-axis.

    Returns:
        `path`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5))
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        for place, (arm, (color, style)) in enumerate(looks(list(lines)).items()):
            line, above = lines[arm], 3 - place / len(lines)
            axes.fill_between(where, *line.band, color=color, alpha=0.12, linewidth=0, zorder=above)
            label = f"{TITLES.get(arm, arm)} ({line.runs})"
            axes.plot(where, line.values, color=color, linestyle=style, linewidth=1.8, label=label, zorder=above)
        axes.set_title(labels[0])
        axes.set_xlabel(labels[1])
        axes.set_xlim(float(where[0]), float(where[-1]))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.xaxis.set_major_formatter(formatter)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.legend(loc="outside right upper", title="arm (runs)\nbands: 95 %", alignment="left")
        with replaced_whole(path) as temporary:
            figure.savefig(temporary, format="png")
    return path
