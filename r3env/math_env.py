"""`r3env/Math-v0`: problems of a data set, answered in a box and graded by equivalence."""

from collections.abc import Mapping, Sequence

from r3env.core import Query, Verdict, VerifiableEnv
from r3env.data import load_queries
from r3env.grading import grade
from r3env.prompts import MATH_INSTRUCTION, REFLECTION_GUIDANCE

EMBEDDED_TRAINING_PROBLEMS = "embedded:train"


class MathEnv(VerifiableEnv):
    """Mathematical problems with one reference answer each.

    With `max_turns=2` a wrong answer is met with the reflection guidance, and the policy answers again.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        split: str = "train",
        columns: Mapping[str, str] | None = None,
        instruction: str = MATH_INSTRUCTION,
        reflection_guidance: str = REFLECTION_GUIDANCE,
        max_turns: int = 1,
        grading_timeout_s: float = 5.0,
    ) -> None:
        """Makes the environment; the problems are loaded when first needed.

        Args:
            data: A file (.jsonl, .json, .parquet, .csv), a Hub id, or `embedded:train` or `embedded:heldout`;
                None for the embedded training problems.
            split: Split of a Hub data set.
            columns: Names of the data's columns, see `r3env.data.load_queries`.
            instruction: Text that follows the problem; empty for none.
            reflection_guidance: The user turn after a wrong answer.
            max_turns: Answers that the policy may give in an episode.
            grading_timeout_s: Seconds that grading one answer may take.

        Raises:
            ValueError: `max_turns` or `grading_timeout_s` is not positive.
        """
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, max_turns=max_turns)
        if not grading_timeout_s > 0:
            raise ValueError(f"grading_timeout_s must be positive, it is {grading_timeout_s!r}")
        self.data = data or EMBEDDED_TRAINING_PROBLEMS
        self.split = split
        self.columns = dict(columns or {})
        self.grading_timeout_s = grading_timeout_s

    def load_queries(self) -> Sequence[Query]:
        """The problems of `data`."""
        return load_queries(self.data, columns=self.columns, split=self.split)

    def verify(self, query: Query, response: str) -> Verdict:
        """Compares the response's final answer with the reference."""
        return grade(response, query.answer, timeout_s=self.grading_timeout_s)
