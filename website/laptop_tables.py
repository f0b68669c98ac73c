"""Figures of the laptop's runs; `python -m benchmarks.laptop` prints the same tables from the same records."""

import functools
from pathlib import Path

from benchmarks import laptop, laptop_math
from benchmarks.laptop import Run


@functools.cache
def _runs() -> tuple[Run, ...]:
    return tuple(laptop.read_records())


def in_short(_: Path) -> str:
    """Return each arm's gain, by seed and on average."""
    return laptop.gains(_runs())


def gains_and_curves(images: Path) -> str:
    """Return the same with the curves over generated tokens, which it draws."""
    laptop.draw_curves(_runs(), images / "laptop.png")
    picture = "![Held-out pass@1 over generated tokens](../images/laptop.png)"
    return f"{laptop.gains(_runs())}\n\n{picture}"


def by_seed(_: Path) -> str:
    """Return every run."""
    return laptop.by_seed(_runs())


def by_kind(_: Path) -> str:
    """Return pass@1 by kind of constraint."""
    return laptop.by_kind(_runs())


def answers(_: Path) -> str:
    """Return answers before and after, of one run of GRPO and one of R³."""
    shown = [f"**{laptop.TITLES[arm]}**\n\n{laptop.answers(_runs(), arm)}" for arm in laptop.ARMS[:2]]
    return "\n\n".join(shown)


def math_sweep(_: Path) -> str:
    """Return the arms of the sweep of word problems."""
    return laptop_math.table(laptop_math.read_records())
