"""A single-turn task: put the digits of a number in order."""

import gymnasium

from r3env.core import Query, Reason, Verdict, VerifiableEnv

SPLITS = {"train": range(10_000, 100_000, 331), "heldout": range(10_100, 100_000, 1655)}
gymnasium.register("SortDigits-v0", f"{__name__}:SortDigits")


class SortDigits(VerifiableEnv):
    """Numbers of five digits; `data` is `train` or `heldout`, which share none."""

    def __init__(self, data: str = "train", *, instruction: str = "", max_turns: int = 1) -> None:
        super().__init__(instruction=instruction, max_turns=max_turns)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.numbers = SPLITS[data]

    def load_queries(self) -> list[Query]:
        """Make one query per number: its uid, the problem, the answer."""
        return [Query(str(n), f"Sort the digits of {n}.", "".join(sorted(str(n)))) for n in self.numbers]

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the last word of the response with the sorted digits."""
        return Verdict(right := response.split()[-1:] == [query.answer], Reason.EQUAL if right else Reason.DIFFERENT)

    def reference_response(self, query: Query) -> str:
        """Return a correct response: the digits without a box around them."""
        return query.answer
