"""A task over numbered passages that rewards citing those that the answer needs."""

import re
from typing import Any, Literal

import gymnasium
import numpy as np

from r3env.core import REFLECTION_STEPS, Query, Reason, Verdict, VerifiableEnv

SPLITS = {"train": range(240), "heldout": range(1000, 1060)}
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June")
THINGS = ("apples", "books", "coins", "pens")
INSTRUCTION = (
    "Name the passages that the answer needs, and then the answer, in a last line such as: Sources: [2] [5] Answer: 7"
)
_SOURCES = re.compile(r"sources?:((?:[\s,;]*\[\d{1,9}\])+)", re.IGNORECASE)
_ANSWER = re.compile(r"answer:\s*(-?\d{1,9})(?!\d)", re.IGNORECASE)

Pays = Literal["outcome", "context", "rubric"]


class CiteSources(VerifiableEnv):
    """Asks how many things two people have together; who has what is in two of many passages.

    Args:
        data: `train` or `heldout`.
        passages: how many there are.
        pays: `outcome`: the answer alone, a. `context`: `a + 0.1 F + 0.9 a F`, F the F₂ of what is cited:
            with the answer alone nothing is learned from finding what it needs (LongRLVR). `rubric`:
            `(1 - share) a + share · a · F`: a correct answer without its sources is worth less (C-GRPO).
        share: with `rubric`, what the sources are worth (ρ).

    Source: LongRLVR and C-GRPO, the authors' code; a judge gives C-GRPO's rubric, here it is F₂.
    """

    def __init__(
        self,
        data: str = "train",
        *,
        passages: int = 8,
        pays: Pays = "context",
        share: float = 0.3,
        instruction: str = INSTRUCTION,
        **arguments: Any,
    ) -> None:
        guidance = f"{REFLECTION_STEPS}{instruction}"
        super().__init__(**{"instruction": instruction, "reflection_guidance": guidance} | arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        if not 2 <= passages <= len(NAMES) * len(THINGS):
            raise ValueError(f"passages must be between 2 and {len(NAMES) * len(THINGS)}, it is {passages}")
        if pays not in ("outcome", "context", "rubric") or not 0 <= share <= 1:
            raise ValueError(f"pays must be outcome, context or rubric, and share between 0 and 1: {pays!r}, {share}")
        self.numbers, self.passages, self.pays, self.share = SPLITS[data], passages, pays, share

    def load_queries(self) -> list[Query]:
        """Make a query of each number."""
        return [self._query(number) for number in self.numbers]

    def _query(self, number: int) -> Query:
        rng = np.random.default_rng(number)
        thing, pair = rng.choice(THINGS), rng.choice(len(NAMES), 2, replace=False)
        needed = [(NAMES[person], str(thing)) for person in pair]
        others = [(name, other) for name in NAMES for other in THINGS if (name, other) not in needed]
        facts = [*needed, *(others[place] for place in rng.permutation(len(others))[: self.passages - 2])]
        order, counts = rng.permutation(len(facts)), rng.integers(1, 50, len(facts))
        lines = [f"[{at}] {facts[fact][0]} has {counts[fact]} {facts[fact][1]}." for at, fact in enumerate(order, 1)]
        question = f"How many {thing} have {needed[0][0]} and {needed[1][0]} together?"
        sources = sorted(int(np.flatnonzero(order == fact)[0]) + 1 for fact in (0, 1))
        info = {"needed": tuple(sources)}
        return Query(f"cite-{number}", "\n".join([*lines, question]), str(counts[:2].sum()), info=info)

    def verify(self, query: Query, response: str) -> Verdict:
        """Grade the last answer, and the passages that the last list of sources names."""
        answers, cited = _ANSWER.findall(response), citations(response)
        correct = bool(answers) and int(answers[-1]) == int(query.answer)
        found = f_score(cited, frozenset(query.info["needed"]))
        reason = Reason.EQUAL if correct else Reason.DIFFERENT if answers else Reason.NO_ANSWER
        feedback = f"{len(cited & frozenset(query.info['needed']))} of the passages named are needed."
        return Verdict(correct, reason, score=self.score(float(correct), found), feedback=feedback)

    def score(self, answer: float, sources: float) -> float:
        """Return the reward of an answer, 0 or 1, and of the F₂ of its sources."""
        if self.pays == "context":
            return answer + 0.1 * sources + 0.9 * answer * sources
        return answer if self.pays == "outcome" else (1 - self.share) * answer + self.share * answer * sources

    def reference_response(self, query: Query) -> str:
        """Return the correct answer with its sources."""
        return f"Sources: {' '.join(f'[{place}]' for place in query.info['needed'])} Answer: {query.answer}"


def citations(response: str) -> frozenset[int]:
    """Return the passages that the last list of sources names."""
    lists = _SOURCES.findall(response)
    return frozenset(map(int, re.findall(r"\d+", lists[-1]))) if lists else frozenset()


def f_score(cited: frozenset[int], needed: frozenset[int], beta: float = 2.0) -> float:
    """Return the F score of the cited passages against those needed: recall counts `beta` times as much."""
    hits = len(cited & needed)
    return (1 + beta**2) * hits / (beta**2 * len(needed) + len(cited)) if hits else 0.0


gymnasium.register("CiteSources-v0", CiteSources)
