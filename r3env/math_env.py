"""`r3env/Math-v0`: problems of a data set, answered in a box and graded by equivalence."""

from collections.abc import Mapping

from r3env.core import Queries, Query, Verdict, VerifiableEnv
from r3env.data import Selection, load_table
from r3env.grading import grade
from r3env.prompts import MATH_INSTRUCTION, REFLECTION_GUIDANCE
from r3env.shared_queries import shared, state_of
from r3env.sources import parse_source
from r3env.tokenizer_length import token_counter

EMBEDDED_TRAINING_PROBLEMS = "embedded:train"


class MathEnv(VerifiableEnv):
    """Mathematical problems with one reference answer each.

    With `max_turns=2` a wrong answer is met with the reflection guidance, and the policy answers again. The problems
    are read once in a process, however many of these environments it makes.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        instruction: str = MATH_INSTRUCTION,
        reflection_guidance: str = REFLECTION_GUIDANCE,
        max_turns: int = 1,
        grading_timeout_s: float = 5.0,
        revision: str | None = None,
        preset: str | None = None,
        limit: int | None = None,
        max_prompt_length: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Makes the environment; the problems are loaded when first needed.

        Args:
            data: A file (.jsonl, .json, .parquet, .csv), `preset:NAME`, a Hub id, or `embedded:train` or
                `embedded:heldout`; None for the embedded training problems.
            split: Split of a Hub data set; None for the preset's, else `train`.
            columns: Names of the data's columns, see `r3env.data.Selection`.
            instruction: Text that follows the problem; empty for none.
            reflection_guidance: The user turn after a wrong answer.
            max_turns: Answers that the policy may give in an episode.
            grading_timeout_s: Seconds that grading one answer may take.
            revision: Branch, tag or commit of a Hub data set.
            preset: Reads `data` by this preset, for a local copy of a known data set.
            limit: Only this many problems, from the start.
            max_prompt_length: Leaves out problems whose first user turn is longer, and logs how many.
            tokenizer: What `max_prompt_length` is counted in: tokens of this `tokenizer.json`, folder or Hub id,
                the chat template's own not included; None for characters.

        Raises:
            ValueError: A number is not positive.
        """
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, max_turns=max_turns)
        if not grading_timeout_s > 0:
            raise ValueError(f"grading_timeout_s must be positive, it is {grading_timeout_s!r}")
        self.data = data or EMBEDDED_TRAINING_PROBLEMS
        self.split, self.revision, self.preset = split, revision, preset
        self.columns = dict(columns or {})
        self.limit, self.max_prompt_length, self.tokenizer = limit, max_prompt_length, tokenizer
        self.grading_timeout_s = grading_timeout_s

    def load_queries(self) -> Queries:
        """The problems of `data`, shared with every environment of this process that wants the same ones."""
        source = parse_source(self.data, split=self.split, revision=self.revision, preset=self.preset)
        selection = Selection(self.columns, self.limit, self.max_prompt_length, self._prompt_length)
        measured = self.max_prompt_length and (self.max_prompt_length, self.tokenizer, type(self), self.instruction)
        key = state_of(source), tuple(sorted(self.columns.items())), self.limit, measured
        return shared(key, lambda: load_table(source, selection)[0])

    def verify(self, query: Query, response: str) -> Verdict:
        """Compares the response's final answer with the reference."""
        return grade(response, query.answer, timeout_s=self.grading_timeout_s)

    def _prompt_length(self, query: Query) -> int:
        prompt = self.prompt(query)
        return token_counter(self.tokenizer)(prompt) if self.tokenizer else len(prompt)
