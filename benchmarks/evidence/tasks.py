"""Two tasks with three strategies each: one that fits the response limit, one that does not, and a hasty guess.

- *sums*: chains of additions and subtractions, as the embedded model knows them, but of 10 to 14 numbers.
- *words*: `spell_backward` of reasoning-gym, words of 7 to 10 letters.

The hasty strategy is never correct: nothing can be guessed, so a correct answer is always worth storing.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from r3env.assets import arithmetic
from r3env.envs.reasoning_gym import extract_tagged_answer
from r3env.grading import grade

WORDS_PROMPT = "Spell this word backward (example: sun -> nus): "


@dataclass(frozen=True)
class Problem:
    """A problem and four responses to it, as texts.

    Args:
        text: what the policy is asked.
        answer: the right answer, bare.
        short: the way that fits the limit, and is right.
        long: the way that does not fit.
        hasty: an answer without work, and wrong.
        slipped: the short way with a slip in it.
    """

    text: str
    answer: str
    short: str
    long: str
    hasty: str
    slipped: str


@dataclass(frozen=True)
class Task:
    """A task that a base is made for.

    Args:
        problem: draws a problem of a size.
        is_right: whether a response (second) has the right answer (first).
        sizes: the sizes that the base is taught.
        tested: those that it is trained and tested on.
        response_limit: tokens.
    """

    name: str
    problem: Callable[[random.Random, int], Problem]
    is_right: Callable[[str, str], bool]
    sizes: range
    tested: range
    response_limit: int


def sum_problem(rng: random.Random, size: int) -> Problem:
    """Draw a chain of `size` numbers whose answer is not its first number."""
    chain = arithmetic.random_chain(rng, size)
    while chain.answer == chain.first:
        chain = arithmetic.random_chain(rng, size)
    return Problem(
        text=str(chain),
        answer=str(chain.answer),
        short=arithmetic.running(chain),
        long=arithmetic.remainder(chain),
        hasty=f"\\boxed{{{chain.first}}}",
        slipped=arithmetic.running(chain, arithmetic.slipped_totals(chain, rng)),
    )


def word_problem(rng: random.Random, size: int) -> Problem:
    """Make up a word of `size` letters, no palindrome; real ones are used in reinforcement learning only."""
    word = "".join(rng.choice("aeiou" if rng.random() < 0.4 else "bcdfghjklmnpqrstvwxyz") for _ in range(size))
    while word == word[::-1]:
        word += rng.choice("aeiou")
    backward = word[::-1]
    rest = "".join(f"{word[:-i]}-{word[-i]}," for i in range(1, len(word)))
    slip = rng.randrange(len(word) - 1)
    swapped = backward[:slip] + backward[slip + 1] + backward[slip] + backward[slip + 2 :]
    return Problem(
        text=WORDS_PROMPT + word,
        answer=backward,
        short=_answered(backward),
        long=f"{rest}{word[0]}{_answered(backward)}",
        hasty=_answered(word),
        slipped=_answered(swapped if swapped != backward else backward[1:]),
    )


def _answered(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def _boxed_is_right(answer: str, response: str) -> bool:
    return grade(response, answer).correct


def _tagged_is_right(answer: str, response: str) -> bool:
    return extract_tagged_answer(response) == answer


TASKS = {
    "sums": Task("sums", sum_problem, _boxed_is_right, range(3, 15), range(10, 15), response_limit=48),
    "words": Task("words", word_problem, _tagged_is_right, range(4, 11), range(7, 11), response_limit=32),
}
