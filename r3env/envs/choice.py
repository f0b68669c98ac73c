"""`r3env/Choice-v0`: questions with lettered options, answered by a letter."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any, NamedTuple

from r3env.core import REFLECTION_STEPS, Query, Reason, Verdict
from r3env.data.loading import Selection
from r3env.data.options import OptionsError
from r3env.envs.math import MathEnv
from r3env.grading.extraction import final_answer
from r3env.reasoning import visible_text
from r3env.registry import OptionError

# The wording of OpenAI's simple-evals for GPQA. It has none for MMLU-Pro, whose authors give five solved examples.
CHOICE_INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the following format: "
    "'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by step before answering."
)
# As this package writes them, and as others do.
_OPTIONS = (
    re.compile(r"^[ \t]*([A-Z])\)[ \t]*(.*)", re.MULTILINE),
    re.compile(r"^[ \t]*\(([A-Z])\)[ \t]*(.*)", re.MULTILINE),
    re.compile(r"^[ \t]*([A-Z])[.:][ \t]+(.*)", re.MULTILINE),
    re.compile(r"^[ \t]*([A-Z])[\uff0e\u3001\uff1a][ \t]*(.*)", re.MULTILINE),
)
# What may stand before a letter on its line: bold, a box, a parenthesis, dollar signs.
_BEFORE = r"[^\w\n]{0,8}(?:(?i:option|choice)[ \t]+\(?)?(?:\\(?:boxed|text(?:bf)?|mathrm|mathbf)\{[^\w\n]{0,3}){0,2}"
# No letter of a word, and `I` not as the first word of a sentence.
_ALONE = r"(?!\w|['’]\w)(?!(?<=I)[ \t]+\w)"
_MARKUP = re.compile(r"\\(?:boxed|text[a-z]*|math(?:rm|bf|it))\s*\{|\\[ ,;:!]|\\q?quad|[{}$*_`~]")
_GUESS = (
    r"(?:(?:maybe|perhaps|possibly|probably|alternatively|also|even|else|both|either|rather"
    r"|(?:could|might|may)\s+be)\s+)"
)
_JOINS = r"(?i:and/or|or|and|as\s+well\s+as|plus|to|through|vs\.?|versus|oder|und|ou)(?!\w)|[/&|+=>]"


class ChoiceEnv(MathEnv):
    """Questions whose problem ends in lettered options, `A) …`, and whose reference answer is a letter.

    The instruction stands before the question. The answer is the first letter of an option after `Answer:`, as
    simple-evals reads it; `chosen_letter` has what stands in for it.
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
        if "answer" in arguments:
            raise OptionError(
                "answer",
                "the answer is a letter; fix: leave it out, or set it in a part of a mixture that reads it",
            )
        super().__init__(data, instruction=instruction, reflection_guidance=reflection_guidance, **arguments)

    def prompt(self, query: Query) -> str:
        """Return the first user turn: the instruction, the question and its options."""
        if not self.instruction:
            return query.problem
        letters = "".join(_options(query)) or "the options' letters"
        return f"{self.instruction.replace('{letters}', letters)}\n\n{query.problem}"

    def reference_response(self, query: Query) -> str:
        """Return the letter, in the form that the instruction requires."""
        return f"Answer: {query.answer}"

    def answer_form(self, query: Query) -> str:
        """Return how a letter is named."""
        return "a letter behind 'Answer:' or in \\boxed{}"

    def _selection(self) -> Selection:
        return replace(super()._selection(), reference=reference_letter)

    def verify(self, query: Query, response: str) -> Verdict:
        """Compare the letter that the response chooses with the reference."""
        options = _options(query)
        letter = chosen_letter(response, "".join(options) or ascii_uppercase, options)
        if letter is None:
            return Verdict(False, Reason.NO_ANSWER)
        correct = letter == query.answer
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, answer=letter)


def reference_letter(query: Query) -> str:
    r"""Return the letter that a reference means: `B`, `(b)`, `\boxed{B}`, `B) 2`, or the text of an option.

    Raises:
        OptionsError: It means none of the question's options, or several.
    """
    options, said = _options(query), query.answer.strip()
    letters = "".join(options) or ascii_uppercase
    bare = _plain(said).strip("().: ")
    if len(bare) == 1 and bare in letters:
        return bare
    of_text = [letter for letter, text in options.items() if text.strip() == said]
    of_text = of_text or [letter for letter, text in options.items() if _words(text) == _words(said)]
    found = of_text[0] if len(of_text) == 1 else chosen_letter(said, letters, options)
    if found is None and len(bare) == 1 and bare.upper() in letters:
        found = bare.upper()
    if found is None:
        problem = f"'answer' is {said!r:.60}, which names no single one of the {len(options) or 'lettered'} options"
        raise OptionsError(problem, "make it the letter of one, or its text")
    return found


def chosen_letter(
    response: str, letters: str = ascii_uppercase, options: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    r"""Return the letter that a response chooses; None without one. Thinking is no part of the response.

    Where several are named, the first that is found counts, in this order: behind `Answer:` on the same line, alone on
    the next line, behind `answer is` (MMLU-Pro's own format), in the last box, in a response of one line that begins
    with its label.
    In a box the option's text may follow: `\boxed{C: \text{seven}}`. A letter that others are joined to, as in
    `Answer: A or B`, is a hedge, which is no answer; letters in the option's own text, `D) Both A and B`, are none.

    Args:
        response: The response.
        letters: Those of the question's options; others are not read.
        options: The text of each, where it is known.
    """
    visible = visible_text(response)
    if visible is None:
        return None
    patterns = _patterns(letters)
    if found := next(filter(None, (pattern.search(visible) for pattern in patterns.sentences)), None):
        letter = str(found[1])
        spelled = _words(letter + visible[found.end() :].partition("\n")[0]).rstrip(". ")
        others = {name: words for name, text in options.items() if (words := _begins(spelled, text, letter))}
        if exact := [name for name, words in others.items() if words == spelled]:
            return exact[0] if len(exact) == 1 else None
        if others and letter not in others:
            return None
        rest = _without(options.get(letter, ""), _plain(visible[found.end() :].partition("\n")[0]))
        return None if patterns.joined.match(rest) else letter
    boxed = final_answer(response)
    if boxed is None and "\n" in visible.strip():
        return None
    text = _plain(visible if boxed is None else boxed).strip()
    label = patterns.label.fullmatch(text)
    if label is None:
        return None
    rest = _without(options.get(label[1], ""), text[label.end(1) :])
    return None if patterns.another.search(rest) or patterns.joined.match(rest) else str(label[1])


class _Patterns(NamedTuple):
    """What finds a letter as its first group.

    Args:
        sentences: In a response, most certain first.
        joined: Another letter, right behind one.
        label: A letter with or without its option's text.
        another: The label of a further option.
    """

    sentences: tuple[re.Pattern[str], ...]
    joined: re.Pattern[str]
    label: re.Pattern[str]
    another: re.Pattern[str]


@lru_cache
def _patterns(letters: str) -> _Patterns:
    letter, one = f"([{letters}])", f"[{letters}]"
    other = rf"[^\w\n]{{0,4}}{one}{_ALONE}"
    label = rf"(?:\({one}\)|{one}\))"
    text = r"(?:(?!\b(?:because|since|as|not|but|while|whereas|than)\b)[^\n]){0,80}?"
    return _Patterns(
        (
            re.compile(rf"(?i:answer)[^\w\n]{{0,6}}:{_BEFORE}{letter}{_ALONE}"),
            re.compile(rf"(?i:answer)[^\w\n]{{0,6}}:[^\w\n]*\n\s*{_BEFORE}{letter}[^\w\n]*$", re.MULTILINE),
            re.compile(rf"(?i:answer is)[ \t]*:?{_BEFORE}{letter}{_ALONE}"),
        ),
        re.compile(
            # `or B`, `and B`, `/ B`, `& B`, `(maybe B)`; a comma also begins a remark: `, C is wrong`
            rf"[^\w\n,;/&|+=>]{{0,6}}(?:,?\s*(?:{_JOINS})\s*{_GUESS}*|,?\s*{_GUESS}+){other}"
            rf"|[^\w\n,;/&|+]{{0,6}}[,;]\s*{other}(?!\s+(?!or\b|and\b)[a-z])"
            rf"|(?:[\s?\u2013\u2014-]+{one}{_ALONE})+[^\w\n]*$"
            # with their options' texts: `) 5 cm or (B) 6 cm`, `) 5, B) 6`, `. 5 or B. 6`
            rf"|{text}\b(?:or|and)\s+(?:{label}|{one}[.:]\s)|\){text}[,;\s]\s*{label}\s*(?!is\b|are\b|was\b|does\b)[\w$\\-]"
        ),
        re.compile(
            rf"\W*(?:(?i:option|choice|answer)(?:\s*+:)?\s+\(?)?{letter}(?:\W*|(?<=\({one})\)\s.*|[.:)][.:)]?\s.*)",
            re.DOTALL,
        ),
        re.compile(rf"(?<!\w)(?:{label}|{one}[:.](?=\s))"),
    )


def _plain(text: str) -> str:
    """Return a text without markup."""
    return _MARKUP.sub(" ", text)


def _words(text: str) -> str:
    return " ".join(_plain(text).split()).casefold()


def _begins(said: str, option: str, letter: str) -> str:
    """Return the words of an option that a text begins with, if their first is a letter, as in `A star`; else ""."""
    words = _words(option).rstrip(". ")
    begins = words.startswith(f"{letter.casefold()} ") and said.startswith(words)
    return words if begins and not said[len(words) :][:1].isalnum() else ""


def _without(option: str, rest: str) -> str:
    """Return what stands behind a letter without the option's text, if that comes first; a letter is no such text."""
    words, behind = (" ".join(_plain(text).split()) for text in (option, rest))
    at = behind.casefold().find(words.casefold())
    return rest if len(words) < 2 or at < 0 or re.search(r"\w", behind[:at]) else behind[at + len(words) :]


def _options(query: Query) -> dict[str, str]:
    """Return a question's options by their letters from A on: the last lines that are marked so, in one known way.

    Empty where none are marked, and where the reference is the letter of none of them that are marked as others do.
    """
    runs = [run for pattern in _OPTIONS if (run := _last_run(list(pattern.finditer(query.problem))))]
    run = max(runs, key=lambda found: found[0].start(), default=[])
    said, found = _plain(query.answer).strip("().: "), {each[1]: each[2] for each in run}
    others = bool(run) and not run[0][0].lstrip().startswith("A)")
    return {} if others and len(said) == 1 and said.isupper() and said not in found else found


def _last_run(marked: Sequence[re.Match[str]]) -> Sequence[re.Match[str]]:
    """Return the last marked lines if their letters are those from A on, two at least."""
    starts = [place for place, each in enumerate(marked) if each[1] == "A"]
    run = marked[starts[-1] :] if starts else []
    letters = "".join(each[1] for each in run)
    return run if len(run) > 1 and ascii_uppercase.startswith(letters) else []
