"""A single-turn task: put the digits of a number in order."""

import random
from typing import Any

import gymnasium

from r3env.core import Query, Reason, Verdict, VerifiableEnv

NUMBERS = [str(number) for number in random.Random(0).sample(range(10_000, 100_000), 300)]
SPLITS = {"train": NUMBERS[:250], "heldout": NUMBERS[250:]}


class SortDigits(VerifiableEnv):
    def __init__(self, data: str = "train", **arguments: Any) -> None:
        super().__init__(**arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.numbers = SPLITS[data]

    def load_queries(self) -> list[Query]:
        return [Query(number, f"Sort the digits of {number}.", "".join(sorted(number))) for number in self.numbers]

    def verify(self, query: Query, response: str) -> Verdict:
        correct = response.split()[-1:] == [query.answer]
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


gymnasium.register("SortDigits-v0", SortDigits)
