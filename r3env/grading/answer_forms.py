r"""Where the final answer of a response stands: in a box, at its last number, or behind a text.

Many small models never write a box, and the solutions of GSM8K end in `#### 18`.
"""

import re

from r3env.grading.normalization import clean

BOX, LAST_NUMBER, AFTER = "box", "last_number", "after:"
_LONGEST_LINE = 2000  # characters at the end of a line in which its last number is looked for

_DIGITS = r"(?:(?:\d{1,3}(?:[, ]\d{3})+(?![\d,]\d)|\d+)(?:\.\d+)?|\.\d+)"
_PART = rf"(?:\{{\s*-?{_DIGITS}\s*\}}|\d)"
_FRACTION = rf"\\[dtc]?frac\s*{_PART}\s*{_PART}"
_POWER_OF_TEN = r"(?:[eE]-?\d+|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*-?\d+\s*\}|-?\d+))"
_DEGREE = r"\s*\{?\s*(?:\\circ|(?:st|nd|rd|th)\b)"  # or an ordinal: no power
# No part of a word, a power, an index, a root or a quotient; nor of a formula that goes on behind it.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])-(?=[\d.\\$\u20ac\u00a3\u00a5]))?(?:\\?[$\u20ac\u00a3\u00a5]\s?)?(?P<sign>(?<=[$\u20ac\u00a3\u00a5])-)?"
    rf"(?<![\w^_{{/.])(?:{_DIGITS}(?:(?::\d+)+|{_POWER_OF_TEN}|\s?{_FRACTION}|(?:\s\d+)?\s?/\s?{_DIGITS})?|{_FRACTION})"
    rf"(?!\d|[.,:]\d|\s*(?:\^(?!{_DEGREE})|\\(?:sqrt|pi|times|cdot|[dt]?frac|left)(?![a-zA-Z]))|[abcknxyz](?![a-zA-Z]))"
    r"(?:\s?\\?%)?",
    re.ASCII,
)
_CURRENCY = re.compile(r"\\?[$\u20ac\u00a3\u00a5]\s?")
_TEXT_COMMAND = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox|boldsymbol|bm)\s*\{([^{}]*)\}")
_CALCULATION = re.compile(r"<<[^<>\n]*>>")  # of GSM8K's solutions
_BEFORE = re.compile(r"[\s:=*_`#>]*(?:is\b[\s:=*_`]*)?")
_SENTENCE_END = re.compile(r"(?<=[\d$)}%\]*])\.\s+(?=[A-Z])")


def form_problem(form: object) -> str:
    """Return why something is no form of answers, for a message that begins with its name; empty if it is one."""
    if form in (BOX, LAST_NUMBER) or (isinstance(form, str) and form.startswith(AFTER) and marker(form)):
        return ""
    return f"must be box, last_number or after:TEXT, such as after:####, it is {form!r}"


def marker(form: str) -> str:
    """Return the text that an answer of the form `after:TEXT` follows; empty for the others."""
    return form[len(AFTER) :].strip() if form.startswith(AFTER) else ""


def instruction(form: str) -> str:
    """Return what asks for an answer of this form."""
    if form == BOX:
        return "put your final answer within \\boxed{}."
    if form == LAST_NUMBER:
        return "end with your final answer, a number."
    return f"give your final answer on the last line, after '{marker(form)}'."


def written_in(form: str, answer: str) -> str:
    """Return a response that gives this answer in the form."""
    if form == BOX:
        return f"\\boxed{{{answer}}}"
    return f"The answer is {answer}." if form == LAST_NUMBER else f"{marker(form)} {answer}"


def described(form: str) -> str:
    """Return what is looked for, in words."""
    if form == BOX:
        return "a final answer in \\boxed{}"
    return "a number" if form == LAST_NUMBER else f"a final answer behind '{marker(form)}' on the same line"


def last_number(text: str) -> str | None:
    r"""Return the last number in a text, without its currency, or None.

    Signs, decimals, thousands separators, fractions, mixed numbers, powers of ten, ratios and percent signs belong to
    it; the full stop behind it does not. A number in a formula, as in `2\pi`, `x^2` or `\sqrt{2}`, is none.
    """
    for line in reversed(text.split("\n")):
        if not re.search(r"\d", line):
            continue
        if found := list(_NUMBER.finditer(clean(_TEXT_COMMAND.sub(r"\1", line[-_LONGEST_LINE:])))):
            return _CURRENCY.sub("", found[-1].group()).strip()
    return None


def text_after(text: str, mark: str) -> str | None:
    """Return what follows the last `mark`, in any case, up to the end of its sentence or line; None without one."""
    places = list(re.finditer(re.escape(mark), text, re.IGNORECASE))
    if not places:
        return None
    line = _CALCULATION.sub("", text[places[-1].end() :].partition("\n")[0])
    before = _BEFORE.match(line)
    line = _SENTENCE_END.split(line[before.end() if before else 0 :], maxsplit=1)[0]
    return line.strip(" \t\r*_`#").rstrip(".,;:!").rstrip("*_` ").strip() or None
