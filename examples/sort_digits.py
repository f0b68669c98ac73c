"""A single-turn task: put the digits of a number in order."""

from typing import Any

import gymnasium

from r3env.core import Query, Reason, Verdict, VerifiableEnv

SPLITS = {"train": range(10_000, 100_000, 331), "heldout": range(10_100, 100_000, 1655)}


class SortDigits(VerifiableEnv):
    """Numbers of five digits; `data` is `train` or `heldout`, which share none."""

    def __init__(self, data: str = "train", **arguments: Any) -> None:
        super().__init__(**arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.numbers = SPLITS[data]

    def load_queries(self) -> list[Query]:
        """One query a number: its uid, the problem, the answer."""
        return [Query(str(n), f"Sort the digits of {n}.", "".join(sorted(str(n)))) for n in self.numbers]

    def verify(self, query: Query, response: str) -> Verdict:
        """The last word of the response must be the sorted digits."""
        return Verdict(right := response.split()[-1:] == [query.answer], Reason.EQUAL if right else Reason.DIFFERENT)


gymnasium.register("SortDigits-v0", SortDigits)
