"""A game of several turns: guess a number, and learn after each guess whether it was too low or too high."""

import random
import re
from typing import Any

import gymnasium

from r3env.core import Query, Reason, Verdict, VerifiableEnv

HIGHEST = 1000
NUMBERS = random.Random(0).sample(range(1, HIGHEST + 1), HIGHEST)
SPLITS = {"train": NUMBERS[:800], "heldout": NUMBERS[800:]}


class GuessNumber(VerifiableEnv):
    """One secret number per query; an episode ends with the correct guess or after `max_turns` guesses.

    `data` is `train` or `heldout`; ten halvings find any number.
    """

    def __init__(self, data: str = "train", max_turns: int = 10, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.numbers = SPLITS[data]

    def load_queries(self) -> list[Query]:
        """Make queries of the same text: only the answers to the guesses differ."""
        problem = f"I have a whole number from 1 to {HIGHEST} in mind. Guess it; end each turn with your guess."
        return [Query(f"number-{number}", problem, str(number)) for number in self.numbers]

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the last number of the response with the secret one."""
        guess = last_number(response)
        if guess is None:
            return Verdict(False, Reason.NO_ANSWER)
        correct = guess == int(query.answer)
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return the next user turn after an incorrect guess."""
        guess = last_number(response)
        if guess is None:
            return f"There is no number from 1 to {HIGHEST} in your turn. Guess again."
        return f"My number is {'higher' if guess < int(query.answer) else 'lower'} than {guess}. Guess again."

    def reference_response(self, query: Query) -> str:
        """Return the correct guess."""
        return query.answer


def last_number(response: str) -> int | None:
    """Return the last number of a response that could be meant."""
    found = [int(digits) for digits in re.findall(r"\b[0-9]{1,4}\b", response)]
    return found[-1] if found and 1 <= found[-1] <= HIGHEST else None


gymnasium.register("GuessNumber-v0", GuessNumber)
