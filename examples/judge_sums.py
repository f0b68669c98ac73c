"""A task of judgments: is this solution of a sum correct? For a part of a mixture, as Critique-Coder has it."""

import random

import gymnasium

from benchmarks.embedded_model.arithmetic import random_chain, running, slipped_totals
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from r3env.grading.extraction import final_answer

INSTRUCTION = "Is the final answer of this solution correct? End with \\boxed{correct} or \\boxed{incorrect}."
gymnasium.register("JudgeSums-v0", f"{__name__}:JudgeSums")


class JudgeSums(VerifiableEnv):
    """Shows a sum and a solution, which has a slip in half of the queries; a judgment is paid if it is right.

    `data` is `train` or `heldout`, which share no sum; a data set's name may stand before it, `embedded:train`.
    """

    def __init__(self, data: str = "train", *, instruction: str = INSTRUCTION, **more: object) -> None:
        super().__init__(instruction=instruction or INSTRUCTION, **more)  # type: ignore[arg-type]
        if data.removeprefix("embedded:") not in ("train", "heldout"):
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.held_out = data.endswith("heldout")

    def load_queries(self) -> list[Query]:
        """Make a query of each sum."""
        rng, queries = random.Random(0), {}
        for number in range(500):
            chain = random_chain(rng, rng.randint(5, 9))
            totals = slipped_totals(chain, rng) if number % 2 else chain.totals
            label = "correct" if totals[-1] == chain.answer else "incorrect"
            queries[str(chain)] = Query(str(chain), f"{chain}\n\nSolution: {running(chain, totals)}", label)
        made = list(queries.values())
        return made[400:] if self.held_out else made[:400]

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the boxed word."""
        word = final_answer(response)
        right = word is not None and word.removeprefix("\\text{").removesuffix("}").strip().lower() == query.answer
        reason = Reason.EQUAL if right else Reason.NO_ANSWER if word is None else Reason.DIFFERENT
        return Verdict(right, reason, answer=word)
