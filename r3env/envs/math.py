"""`r3env/Math-v0`: problems of a data set, whose final answers are graded by equivalence."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from r3env.core import REFLECTION_STEPS, Queries, Query, Verdict, VerifiableEnv
from r3env.data.loading import Selection, load_table
from r3env.data.shared import load_shared, source_state
from r3env.data.sources import parse_source
from r3env.grading import answer_forms, grade, same_value
from r3env.queries import VARIANTS
from r3env.registry import OptionError

EMBEDDED_TRAINING_PROBLEMS = "embedded:train"
HINTS = "hints"  # a row's hints by level
KEPT = (HINTS, VARIANTS)  # in `Query.info`, where a row has them
MATH_INSTRUCTION = f"Please reason step by step, and {answer_forms.instruction(answer_forms.BOX)}"


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
        answer: str = answer_forms.BOX,
        instruction: str | None = None,
        reflection_guidance: str | None = None,
        max_turns: int = 1,
        grading_timeout_s: float = 5.0,
        revision: str | None = None,
        preset: str | None = None,
        limit: int | None = None,
        max_prompt_length: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Make the environment; the problems are loaded when first needed.

        Args:
            data: A file (.jsonl, .json, .parquet, .csv), `preset:NAME`, a Hub id, or `embedded:train` or
                `embedded:heldout`; None for the embedded training problems.
            split: Split of a Hub data set; None for the preset's, else `train`.
            columns: Names of the data's columns, see `r3env.data.loading.Selection`.
            answer: Where the final answer stands in a response: `box`, `last_number` or `after:TEXT`, see
                `r3env.grading.extraction.final_answer`.
            instruction: Text that follows the problem; empty for none, None to ask for an answer of that form.
            reflection_guidance: The user turn after a wrong answer; None for steps to find the mistake, which end with
                the form.
            max_turns: Answers that the policy may give in an episode.
            grading_timeout_s: Seconds that grading one answer may take.
            revision: Branch, tag or commit of a Hub data set.
            preset: Reads `data` by this preset, for a local copy of a known data set.
            limit: Only this many problems, from the start.
            max_prompt_length: Leaves out problems whose first user turn is longer, and logs how many.
            tokenizer: What `max_prompt_length` is counted in: tokens of this `tokenizer.json`, folder or Hub id,
                the chat template's own not included; None for characters.

        Raises:
            ValueError: A number is not positive, or `columns` maps no names to names.
            OptionError: `answer` is no form.
        """
        if problem := answer_forms.form_problem(answer):
            raise OptionError("answer", problem)
        asked = answer_forms.instruction(answer)
        if instruction is None:
            instruction = f"Please reason step by step, and {asked}"
        if reflection_guidance is None:
            reflection_guidance = REFLECTION_STEPS + asked[:1].upper() + asked[1:]
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, max_turns=max_turns)
        if isinstance(grading_timeout_s, bool) or not isinstance(grading_timeout_s, int | float):
            raise ValueError(f"grading_timeout_s must be a number of seconds, it is {grading_timeout_s!r}")
        if not grading_timeout_s > 0:
            raise ValueError(f"grading_timeout_s must be positive, it is {grading_timeout_s!r}")
        if not isinstance(columns, Mapping | None) or not all(
            isinstance(name, str) for name in (columns or {}).values()
        ):
            raise ValueError(
                f"columns must map our names to those of the data, {{problem: question}}, it is {columns!r}"
            )
        self.data = data or EMBEDDED_TRAINING_PROBLEMS
        self.split, self.revision, self.preset = split, revision, preset
        self.columns = dict(columns or {})
        self.limit, self.max_prompt_length, self.tokenizer = limit, max_prompt_length, tokenizer
        self.answer, self.grading_timeout_s = answer, grading_timeout_s

    def load_queries(self) -> Queries:
        """Return the problems of `data`, shared with every environment of this process that wants the same ones."""
        source = parse_source(self.data, split=self.split, revision=self.revision, preset=self.preset)
        selection = self._selection()
        columns = tuple(sorted((selection.columns or {}).items())), selection.optional, selection.whole_row
        measured = self.max_prompt_length and (self.max_prompt_length, self.tokenizer, type(self), self.instruction)
        key = source_state(source), columns, self.limit, measured, selection.reference
        return load_shared(key, lambda: load_table(source, selection)[0])

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the response's final answer with the reference."""
        return grade(response, query.answer, timeout_s=self.grading_timeout_s, form=self.answer)

    def reference_response(self, query: Query) -> str:
        """Return the reference answer in the form that is read."""
        return answer_forms.written_in(self.answer, query.answer)

    def answer_form(self, query: Query) -> str:
        """Return what the grader reads the final answer from."""
        return answer_forms.described(self.answer)

    def same_answer(self, first: str, second: str) -> bool | None:
        """Return whether two answers have the same value."""
        return same_value(first, second, timeout_s=self.grading_timeout_s)

    def _selection(self) -> Selection:
        return Selection(self.columns, self.limit, self.max_prompt_length, self._prompt_length, optional=KEPT)

    def _prompt_length(self, query: Query) -> int:
        prompt = "\n".join(turn["content"] for turn in query.conversation(self.prompt(query)))
        return token_counter(self.tokenizer)(prompt) if self.tokenizer else len(prompt)


@lru_cache(maxsize=8)
def token_counter(tokenizer: str) -> Callable[[str], int]:
    """Count the tokens of a text, special tokens of a chat template not included.

    Args:
        tokenizer: A `tokenizer.json`, a folder that holds one, or a model's id on the Hub.

    Raises:
        ValueError: It cannot be loaded.
    """
    from tokenizers import Tokenizer  # imported here: few data sets are measured in tokens

    path = Path(tokenizer).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        loaded = Tokenizer.from_file(str(path)) if path.is_file() else Tokenizer.from_pretrained(tokenizer)
    except Exception as error:  # the library raises Exception itself
        reason = str(error).partition("\n")[0]
        raise ValueError(f"tokenizer: {tokenizer!r} cannot be loaded ({reason}); name a tokenizer.json") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)
