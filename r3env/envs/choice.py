"""`r3env/Choice-v0`: questions with lettered options, answered by a letter."""

import re
from typing import Any

from r3env.core import REFLECTION_STEPS, Query, Reason, Verdict
from r3env.envs.math import MathEnv
from r3env.grading.extraction import final_answer

# The wording that published results of GPQA and MMLU-Pro were measured with, of OpenAI's simple-evals.
CHOICE_INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the following format: "
    "'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by step before answering."
)
# Also in bold, in a box, in parentheses or between dollar signs.
_ANSWER = re.compile(r"(?i:answer)\W{0,6}:\W{0,8}(?:\\(?:boxed|text|mathrm|mathbf)\{\W{0,3}){0,2}([A-Z])(?![A-Za-z])")
_OPTION = re.compile(r"^([A-Z])\) ", re.MULTILINE)


class ChoiceEnv(MathEnv):
    """Questions whose problem ends in lettered options, `A) …`, and whose reference answer is a letter.

    The instruction stands before the question, as where published results were measured. The answer is the letter
    after the last `Answer:`, or else the one in the last box.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        instruction: str = CHOICE_INSTRUCTION,
        reflection_guidance: str = REFLECTION_STEPS + "End with a line 'Answer: $LETTER'.",
        **arguments: Any,
    ) -> None:
        """Make the environment; the problems are loaded when first needed.

        Args:
            data: As in `r3env/Math-v0`, such as `preset:gpqa` or `preset:mmlu-pro`.
            instruction: Text before the question; `{letters}` becomes the question's letters, empty for none.
            reflection_guidance: The user turn after an incorrect answer.
            arguments: Further arguments of `r3env/Math-v0`.

        Raises:
            ValueError: A number is not positive.
        """
        super().__init__(data, instruction=instruction, reflection_guidance=reflection_guidance, **arguments)

    def prompt(self, query: Query) -> str:
        """Return the first user turn: the instruction, the question and its options."""
        if not self.instruction:
            return query.problem
        letters = "".join(_OPTION.findall(query.problem)) or "ABCD"
        return f"{self.instruction.replace('{letters}', letters)}\n\n{query.problem}"

    def reference_response(self, query: Query) -> str:
        """Return the letter, in the form that the instruction requires."""
        return f"Answer: {query.answer}"

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the letter that the response chooses with the reference."""
        letter = chosen_letter(response)
        if letter is None:
            return Verdict(False, Reason.NO_ANSWER)
        correct = letter == query.answer
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, answer=letter)


def chosen_letter(response: str) -> str | None:
    """Return the letter after the last `Answer:` after any thinking, or else in the last box; None without either."""
    _, _, visible = response.rpartition("</think>")
    if "<think>" in visible:
        return None
    if found := _ANSWER.findall(visible):
        return str(found[-1])
    boxed = re.fullmatch(r"\W*(?:\\(?:text|mathrm|mathbf)\{)?\W*([A-Z])\W*", final_answer(response) or "")
    return boxed[1] if boxed else None
