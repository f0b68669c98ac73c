"""Chains of additions and subtractions, and the strategies on which the embedded model is warm-started.

Every running total of a problem stays within 0 and `MAX_TOTAL`. Three ways of working lead to an answer:

- *running*: the running totals, one a term: `7+8=15-9=6+4=10`. Its length grows with the number of terms.
- *remainder*: the sum rewritten after each operation: `15-9+4=6+4=10`. Its length grows with the square, so that long
  problems run into the length limit; but every segment says all that is left to do, and a cut-off attempt can be
  continued from its last whole segment.
- *guess*: an answer without work.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOTAL = 20
REFLECTION_GUIDANCE = "Wrong. Try again."


@dataclass(frozen=True)
class Chain:
    """`first` followed by signed terms of absolute value 1 to 9."""

    first: int
    terms: tuple[int, ...]

    @property
    def totals(self) -> list[int]:
        """The total after each term, the first number included."""
        totals = [self.first]
        for term in self.terms:
            totals.append(totals[-1] + term)
        return totals

    @property
    def answer(self) -> int:
        """The last total."""
        return self.totals[-1]

    def __str__(self) -> str:
        return _expression(self.first, self.terms)


def random_chain(rng: random.Random, length: int) -> Chain:
    """Return a chain of `length` numbers whose totals stay within 0 and `MAX_TOTAL`."""
    total = first = rng.randint(1, 9)
    terms: list[int] = []
    while len(terms) < length - 1:
        term = rng.choice((-1, 1)) * rng.randint(1, 9)
        if 0 <= total + term <= MAX_TOTAL:
            terms.append(term)
            total += term
    return Chain(first, tuple(terms))


def running(chain: Chain, totals: Sequence[int] | None = None) -> str:
    """Solve by running totals; `totals` are those of a solver that slipped."""
    totals = totals or chain.totals
    steps = (f"{term:+d}={total}" for term, total in zip(chain.terms, totals[1:], strict=True))
    return str(chain.first) + "".join(steps) + _boxed(totals[-1])


def remainder(chain: Chain, totals: Sequence[int] | None = None) -> str:
    """Solve by rewriting the rest of the chain; `totals` are those of a solver that slipped."""
    totals = totals or chain.totals
    segments = [_expression(totals[i], chain.terms[i:]) for i in range(1, len(totals))]
    return "=".join(segments) + _boxed(totals[-1])


def guess(chain: Chain, rng: random.Random) -> str:
    """Return an answer alone, mostly a little off, so that the model does not learn to be sure of it."""
    return _boxed(max(0, min(MAX_TOTAL, chain.answer + round(rng.gauss(0, 3)))))


def slipped_totals(chain: Chain, rng: random.Random) -> list[int]:
    """Return the totals of a solver that gets one operation wrong and continues from there."""
    totals = chain.totals
    index = rng.randrange(1, len(totals))
    slip = rng.choice((-2, -1, 1, 2))
    return totals[:index] + [min(MAX_TOTAL, max(0, total + slip)) for total in totals[index:]]


def left_to_do(attempt: str) -> Chain | None:
    """Return what the last whole segment of a truncated *remainder* attempt leaves to do; None without one."""
    if "boxed" in attempt:
        return None
    for segment in reversed(attempt.split("=")[:-1]):
        numbers = segment.replace("+", " +").replace("-", " -").split()
        if len(numbers) > 1:
            return Chain(int(numbers[0]), tuple(int(number) for number in numbers[1:]))
    return None


def hint_levels(chain: Chain) -> list[str]:
    """Return eight hints, the least help first: the terms to add and to subtract, then longer and longer partial work.

    Of `7+1+9-5-2` the first four say ever more of `7+1+9=17 5+2=7`, the last four of `7+1=8+9=17-5=12-2=10`.
    """
    plus = [chain.first, *(term for term in chain.terms if term > 0)]
    minus = [-term for term in chain.terms if term < 0]
    added = _expression(plus[0], plus[1:])
    taken = _expression(minus[0], minus[1:]) if minus else "0"
    known = [added, f"={sum(plus)}", f" {taken}", f"={sum(minus)}"]
    work = [str(chain.first), *(f"{t:+d}={total}" for t, total in zip(chain.terms, chain.totals[1:], strict=True))]
    knowledge = ["".join(known[:part]) for part in range(1, 5)]
    return knowledge + ["".join(work[: 1 + -(-part * len(chain.terms) // 4)]) for part in range(1, 5)]


def _expression(total: int, terms: Sequence[int]) -> str:
    return str(total) + "".join(f"{term:+d}" for term in terms)


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}"
