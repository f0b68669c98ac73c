"""Whether asking again pays: what reflected answers achieve against plain ones to the same queries."""

from collections import deque
from collections.abc import Sequence

GROUPS = 32
ENOUGH = 8


class Payoff:
    """Success of the newest reflection groups beside the plain groups of the same queries and steps.

    A policy may stop making use of its failed attempts, be it that it never could or that training made it forget:
    then its reflected answers cost as many tokens and teach nothing that plain ones do not.
    """

    def __init__(self) -> None:
        self._groups: deque[tuple[float, float]] = deque(maxlen=GROUPS)

    def observe(self, reflected: float, plain: float) -> None:
        """Count a query's reflection group and its plain group: the share of right answers in each."""
        self._groups.append((reflected, plain))

    @property
    def pays(self) -> bool:
        """Whether reflected answers were right more often, over the newest `GROUPS`; True before `ENOUGH` are known."""
        if len(self._groups) < ENOUGH:
            return True
        return sum(reflected for reflected, _ in self._groups) > sum(plain for _, plain in self._groups)

    def state(self) -> list[tuple[float, float]]:
        """What a checkpoint keeps, as JSON."""
        return list(self._groups)

    def restore(self, groups: Sequence[Sequence[float]]) -> None:
        """Put back what `state` gave."""
        self._groups.clear()
        self._groups.extend((reflected, plain) for reflected, plain in groups)
