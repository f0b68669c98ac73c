"""Sums with hints in levels, made by code: what to know first, then more and more of the work."""

import random
from typing import Any

import gymnasium

from benchmarks.embedded_model.arithmetic import Chain, hint_levels, random_chain
from r3env.core import Query, Verdict, VerifiableEnv
from r3env.grading import grade

LENGTHS = range(12, 17)
gymnasium.register("HintedSums-v0", f"{__name__}:HintedSums")


class HintedSums(VerifiableEnv):
    """Long sums for the embedded model; `data` is `train` or `heldout`, which share none.

    `info["hints"]` has two levels of knowledge, which join the problem, and four of partial solutions: the sum with its
    first operations done, which stands in the problem's place. So the environment places its hints itself.
    """

    takes_hint = True

    def __init__(
        self, data: str = "train", *, instruction: str = "", reflection_guidance: str = "Wrong. Try again.", **more: Any
    ) -> None:
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, **more)
        if data not in ("train", "heldout"):
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        rng = random.Random(0)
        chains = {str(chain): chain for chain in (random_chain(rng, rng.choice(LENGTHS)) for _ in range(300))}
        count = len(chains) * 4 // 5
        self.chains = list(chains.values())[:count] if data == "train" else list(chains.values())[count:]

    def load_queries(self) -> list[Query]:
        """Make one query per sum."""
        return [Query(str(c), str(c), str(c.answer), info={"hints": hints(c)}) for c in self.chains]

    def prompt(self, query: Query) -> str:
        """Return the problem, followed by knowledge, or the rest of the problem."""
        if not self.hint:
            return super().prompt(query)
        return f"{query.problem}\n\n{self.hint}" if "=" in self.hint else self.hint

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the boxed answer; the rest of a sum has the sum's own answer."""
        return grade(response, query.answer)


def hints(chain: Chain) -> list[str]:
    """Return the levels of a sum, the least help first."""
    left = []
    for quarter in (1, 2, 3):
        done = quarter * len(chain.terms) // 4
        left.append(str(Chain(chain.totals[done], chain.terms[done:])))
    return [hint_levels(chain)[1], hint_levels(chain)[3], *left, str(Chain(chain.totals[-2], chain.terms[-1:]))]
