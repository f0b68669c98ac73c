"""The steps of two trainers in turn, and their ratios."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.sides.process import Step

NAMES = ("ours", "trl")


@dataclass
class Comparison:
    """The steps of both sides on one task.

    Args:
        warm_up: first steps of each side that are no part of the ratio.
        pairs: further steps that were taken in turn.
        steps: by side; the first one is this project's.
        arithmetic_s: seconds of a step's matrix products alone; 0: not timed.
    """

    warm_up: int
    pairs: int
    steps: dict[str, list[Step]] = field(default_factory=lambda: {name: [] for name in NAMES})
    arithmetic_s: float = 0.0

    @property
    def names(self) -> tuple[str, str]:
        """This project's side, and the other."""
        first, second = self.steps
        return first, second

    def paired(self, name: str) -> list[Step]:
        """Return the steps that count."""
        return self.steps[name][self.warm_up : self.warm_up + self.pairs]

    def elapsed(self, name: str) -> float:
        """Return the seconds that a side has trained for."""
        return sum(step.seconds for step in self.steps[name])

    def median(self, name: str, figure: str = "seconds") -> float:
        """Return the median of a figure over the steps that count."""
        return float(np.median([getattr(step, figure) for step in self.paired(name)]))

    @property
    def ratio(self) -> float:
        """Samples per second of this project over the other side's."""
        return self.median(self.names[1]) / self.median(self.names[0])

    @property
    def cpu_ratio(self) -> float:
        """The same of processor seconds; NaN where they were not measured."""
        own = self.median(self.names[0], "cpu_s")
        return self.median(self.names[1], "cpu_s") / own if own else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and 90th percentile of the ratio over pairs."""
        pairs = zip(*(self.paired(name) for name in self.names), strict=True)
        low, high = np.percentile([other.seconds / own.seconds for own, other in pairs], [10, 90])
        return float(low), float(high)

    @property
    def largest_ratio(self) -> float:
        """What `cpu_ratio` would be if this project only multiplied matrices; NaN where that was not timed."""
        return self.median(self.names[1], "cpu_s") / self.arithmetic_s if self.arithmetic_s else float("nan")

    @property
    def equal_share(self) -> float:
        """The share of this project's responses that are equal to another one of their step."""
        steps = self.paired(self.names[0])
        return sum(step.details.get("equal", 0.0) for step in steps) / max(1, sum(step.samples for step in steps))

    def learned(self, name: str, seconds: float, share: float = 0.2) -> float:
        """Return the mean reward of the steps in the last `share` of `seconds`, or of the one before; 0: none."""
        ends = np.cumsum([step.seconds for step in self.steps[name]])
        rewards = np.array([step.reward for step in self.steps[name]])
        last = int((ends <= seconds).sum())
        first = min(int((ends <= (1 - share) * seconds).sum()), last - 1)
        return float(rewards[first:last].mean()) if last else 0.0

    def learnt_by_step(self, name: str, count: int = 5) -> float:
        """Return the mean reward of the last `count` steps that both sides have taken."""
        common = min(len(steps) for steps in self.steps.values())
        return float(np.mean([step.reward for step in self.steps[name][max(0, common - count) : common]]))
