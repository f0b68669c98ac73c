r"""One spelling for the same mathematics: plain minus signs and spaces, no delimiters, no decoration.

Everything here takes linear time on any input, so that it may run in the training process itself.
"""

import re
from decimal import Decimal

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200e\u200f\u2060\ufeff", ""),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{character: f"^{{{digit}}}" for digit, character in enumerate("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076")},
        **{"\u2077": "^{7}", "\u2078": "^{8}", "\u2079": "^{9}"},
        **{"\u00bd": "\\frac{1}{2}", "\u2153": "\\frac{1}{3}", "\u2154": "\\frac{2}{3}"},
        **{"\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}"},
        **{"\u00d7": "\\times ", "\u00b7": "\\cdot ", "\u22c5": "\\cdot ", "\u00f7": "\\div ", "\u00b1": "\\pm "},
        **{"\u03c0": "\\pi ", "\u221e": "\\infty ", "\u2205": "\\emptyset ", "\u03b8": "\\theta "},
        **{"\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ", "\u2208": "\\in "},
        **{"\u222a": "\\cup ", "\u2229": "\\cap ", "\u211d": "\\mathbb{R}", "\u2124": "\\mathbb{Z}"},
        "\u00b0": "^{\\circ}",
        **{chr(0x2080 + digit): f"_{{{digit}}}" for digit in range(10)},
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u2019\u2032", "'"),
        "\u2033": "''",
        "\u2236": ":",
        **{"\uff0c": ",", "\uff1b": ";", "\uff08": "(", "\uff09": ")", "\uff1d": "=", "\uff05": "%", "\u2044": "/"},
    }
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"), ("**", "**"), ("`", "`"))
# A comma in braces, or one that `\!` draws closer, separates thousands and never two answers; nor does a narrow space.
_THOUSANDS = (
    r"(?:(?:\\(?:text|mbox|mathord|mathpunct))?\{\s*,\s*\}(?:\s*\\!)*|\\!\s*,(?:\s*\\!)*|,(?:\s*\\!)+"
    r"|\\[,;: ]|\\thinspace(?![a-zA-Z])|~)"
)
_POWER_INSIDE = re.compile(
    r"(\\(?:text(?:bf|rm|it)?|mathrm)\s*\{[^{}^$]*[a-zA-Z])\$?\s*\^\s*(?:\{\s*(-?\d)\s*\}|(\d))\s*+\$?\s*\}"
)  # \mathrm{cm^2}
_UPRIGHT = r"text(?:normal|up|md|sf|tt|sc|sl)|emph|[mhf]box"
_LABEL = r"(?:the\s+)?(?:final\s+)?answer"
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ALL_REALS = r"(?:the\s+set\s+of\s+)?all\s+real(?:\s+number)?s?"
_ROUGHLY = r"(?:approximately|approx\.?|about|exactly)"
# Sizes and fonts of old LaTeX, and spaces that fill lines.
_LOOKS = (
    "displaystyle|textstyle|limits|bigl?|bigr|Bigl?|Bigr|tiny|small|normalsize|large|Large|LARGE|huge|Huge|boldmath"
    "|bf|it|tt|sf|rm|hfill"
)
_VALUED = r"(?:\\[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{\w+\}))?\s*=(?!=)"
_COMMANDS = (
    # Between numbers, or equations, a wide space separates two answers, not thousands.
    (re.compile(rf"(?:(?<=\d)|(?<=\d\}}))\s*\\q?quad(?![a-zA-Z])\s*(?=-?\d|{_VALUED})"), ", "),
    (re.compile(rf"(?<=\d)\s*{_THOUSANDS}\s*(?=\d{{3}}(?!\d))"), ""),
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<=\d)\{:\}(?=\d)"), ":"),
    (re.compile(r"\\textdollar(?![a-zA-Z])"), r"\$"),
    (re.compile(r"\\backslash(?![a-zA-Z])"), r"\\setminus"),
    (re.compile(r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"^\s*\\begin\s*\{cases\}([^&]*)\\end\s*\{cases\}\s*$", re.DOTALL), lambda m: _rows(m)),
    (re.compile(r"^\s*\\text\s*\{\s*(-?\d+ +\d+ ?/ ?\d+)\s*\}\s*$"), r"\1"),
    (re.compile(r"\\text\s*\{\s*(\\[$%])\s*\}"), r"\1"),
    (re.compile(r"\\(?:boldsymbol|bm)(?![a-zA-Z])\s*(?=\{)"), r"\\mathbf"),
    (
        re.compile(
            r"\\(?:(?:text)?color\s*\{[a-zA-Z]+\}|hspace\*?\s*\{[^{}]*\}|underline(?=\s*\{)|[hv]phantom\s*\{[^{}]*\})"
        ),
        "",
    ),
    (re.compile(r"\\math(?:rm|it)\s*\{\s*([ei]|\\pi)\s*\}"), r"{\1}"),
    (re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})"), r"\\ln"),
    (re.compile(r"(?<!\\)\\(?:[,;: >]|(?:thin|med|thick)space(?![a-zA-Z]))|~|\\q?quad"), " "),
    (re.compile(rf"\\(?:{_UPRIGHT})\s*(?=\{{)"), r"\\text"),
    (re.compile(r"\\(text|mathrm|mathbf)\s+(?=\{)"), r"\\\1"),
    (re.compile(r"\\math(?:sf|tt|up|normal)\s*(?=\{)"), r"\\mathrm"),
    (re.compile(r"(?<=\d)(\s*)\{\s*\\(?:rm|sf)(?![a-zA-Z])([^{}]*)\}"), r"\1\\text{\2}"),
    (_POWER_INSIDE, r"\1}^{\2\3}"),
    (re.compile(r"\\degree(?![a-zA-Z])"), r"^{\\circ}"),
    (
        re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*|'\s*){1,4})\}|\\prime(?![a-zA-Z]))"),
        lambda m: "'" * (len(re.findall("prime|'", m[1])) if m[1] else 1),
    ),
    (re.compile(r"\\(?:varnothing(?![a-zA-Z])|\{\s*\\\})"), r"\\emptyset"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(rf"\\(?:{_LOOKS})(?![a-zA-Z])\s*"), ""),
    (re.compile(r"(?<=[^\s\\])\s*\\\\\s*$"), ""),  # a line break at the end
    (re.compile(r"^\s*\\left\s*\.(.*)\\right\s*\.\s*$", re.DOTALL), r"\1"),
    (re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (re.compile(r"\\binom\s*(\d|\{[^{}]*\})\s*(\d|\{[^{}]*\})"), lambda m: _binomial(m[1], m[2])),
    (re.compile(r"(\\(?:max|min|gcd))\s*(?:\\left\s*)?\\\{([^{}\\]*)(?:\\right\s*)?\\\}"), r"\1(\2)"),
    (
        re.compile(
            rf"^\s*\\(?:text(?:bf|rm)?|math(?:rm|bf))\s*\{{\s*{_LABEL}(?:\s+is)?\s*+[:=]?\s*\}}\s*+[:=]?(?=\s*\S)", re.I
        ),
        "",
    ),
)
_REWRITES = (
    (
        re.compile(
            r"(?<![\d./^_])(?<!\d )([1-9]\d{0,2}(?:,\d{3}){1,9}|[1-9]\d*) +(\d{1,40}) ?/ ?(\d{1,40})(?![\d./^])"
        ),
        lambda m: _mixed(m),
    ),
    (re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*per\s?cent\s*\}|per\s?cent)\s*$"), r"\%"),
    (
        re.compile(
            rf"(?<![\w.])(?<!\d,)(\d[\d,]{{0,20}}+(?:\.\d+)?)\s*+(?:\\text\s*\{{\s*({'|'.join(_ZEROS)})(?![a-zA-Z])([^{{}}]*\}})|({'|'.join(_ZEROS)})(?![a-zA-Z])(?!\}}))"
        ),
        lambda m: _with_zeros(m),
    ),
    (re.compile(r"^\s*(?:\\text\s*\{\s*infinity\s*\}|infinity)\s*$", re.I), r"\\infty"),
    (re.compile(rf"^\s*(?:\\text\s*\{{\s*{_ALL_REALS}\s*\}}|{_ALL_REALS})\s*+\.?\s*$", re.I), r"\\mathbb{R}"),
    (re.compile(r"^\s*(?:\\text\s*\{\s*all\s+integers\s*\}|all\s+integers)\s*+\.?\s*$", re.I), r"\\mathbb{Z}"),
    (re.compile(rf"^\s*(?:\\text\s*\{{\s*{_ROUGHLY}\s*\}}|{_ROUGHLY})(?=\s*[\d$.\\-])", re.I), ""),
    # As programs and plain texts write it.
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<=[\w)])\*\*(\d{1,2})(?![\d*])"), r"^{\1}"),
    (re.compile(r"(?<=\d)\s?x\s?(?=10\s?\^)"), r"\\times "),
    (re.compile(r"^\s*\$([^$]*[^$\\])\$\s*(\([^()$]*\))\s*$"), r"\1 \2"),
    (re.compile(r"^\s*\$([^$]*[^$\\])\$\s*([a-zA-Z][a-zA-Z .]*)$"), r"\1\\text{ \2}"),
    (re.compile(r"\u221a\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\u221a\s*(\d+|[a-zA-Z])"), r"\\sqrt{\1}"),
    (re.compile(r"^\s*(?:\\approx(?![a-zA-Z])|\u2248|=)"), ""),
    (re.compile(rf"^(\s*\\text(?:bf|rm)?\s*\{{)?\s*{_LABEL}\s*(?::|\bis\b:?)(?=\s*[^\s}}])", re.I), r"\1"),
)
_SET = r"[A-Z](?:'|\^c)*"
_ONLY_FOR_COMPARING = (
    (re.compile(r"([_^])\s*\{\s*(\w)\s*\}(?!\s*\d)"), r"\1\2"),
    (re.compile(r"\\([lg]e|ne)q(?:slant)?(?![a-zA-Z])"), r"\\\1"),
    (
        re.compile(
            r"\\(?:pmod|mod|bmod)\s*(?:\{\s*(\w+)\s*\}|(\w+))|\(\s*(?:\\text\s*\{\s*mod\s*\}|\\?mod)\s*(\w+)\s*\)"
        ),
        lambda m: f"(mod{m[1] or m[2] or m[3]})",
    ),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\[cd]?dots(?![a-zA-Z])|\.\.\.|\u2026"), r"\\ldots"),
    (re.compile(r"\\(?:left|right)(?![a-zA-Z])"), ""),
    (re.compile(r"(?<![\d\s])\s+|(?<!\s)\s++(?!\d)"), ""),
    (re.compile(r"\s+"), " "),
    # The parser knows no sets by name: those of a union, or of an intersection, in one order.
    (re.compile(rf"\A{_SET}(?:\\cup{_SET})+\Z"), lambda m: r"\cup".join(sorted(m[0].split(r"\cup")))),
    (re.compile(rf"\A{_SET}(?:\\cap{_SET})+\Z"), lambda m: r"\cap".join(sorted(m[0].split(r"\cap")))),
)
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|normal)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
_ARGUMENT = r"-?(?:[a-zA-Z]|\d+(?:\.\d+)?)"
_INDEX_WORD = r"_\s*(?:\w|\\[a-zA-Z]+|\{\s*(?:\\?\w+|\\(?:text|mathrm)\s*\{\s*\w+\s*\})\s*\})"
_EVENT = r"[A-Z](?:'|\^c)?"
_NAME = re.compile(
    rf"(?:P\s*\({_EVENT}(?:\s*(?:\||\\(?:mid|cap|cup)(?![a-zA-Z]))\s*{_EVENT})*\)"
    r"|(?:\\(?:max|min|sup|inf|det|dim|deg)(?![a-zA-Z])\s*)?(?:[a-zA-Z]|\\[a-zA-Z]+)"
    rf"(?:{_INDEX_WORD})?'{{0,3}}(?:\({_ARGUMENT}(?:,\s*{_ARGUMENT})*\))?)"
    r"\s*(?:=(?!=)|\\approx(?![a-zA-Z]))\s*"
)
_JOINED_EQUATIONS = re.compile(rf"(?<!\s)\s*(?:\\(?:lor|vee|land|wedge)(?![a-zA-Z])|\s\||\\\\)\s*(?={_VALUED})")
_INDEX = r"_\s*(?:\w|\{\s*\w+\s*\})"
_PRIMED = re.compile(  # but not the apostrophe of John's
    r"(?P<name>\\[a-zA-Z]+|(?!(?<=[a-zA-Z])[a-zA-Z]'[a-z])[a-zA-Z](?:[)}]{1,3})?)"
    rf"(?P<index>{_INDEX})?(?P<primes>'{{1,4}})(?P<behind>{_INDEX})?"
)
_INVERSE = re.compile(r"(?<![a-zA-Z\\])([fghFGH])\s*\^\s*\{\s*-\s*1\s*\}(?=\()")
_GROUPED = re.compile(r"(?<![\d,.(\[{])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_IN_THOUSANDS = re.compile(r"(?<![\d.,])(?<!_\{)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_SEPARATOR = re.compile(r"[,;]\s*(?:and\s)?|\s(?:and|or)\s")
_CLOSING_STOP = re.compile(r"(?<![.,;\s\\])\s*[.,;]$")  # but not an ellipsis
_BRACKETS = re.compile(r"(?<!\\)(?:\\\\)*([{}()])")


def clean(text: str) -> str:
    """Return the same mathematics in one spelling: plain minus signs and spaces, no delimiters or closing stop."""
    text = text.translate(_CHARACTERS)
    if "\\" in text or "{" in text or "~" in text:
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _CLOSING_STOP.sub("", text.strip())
    for opening, closing in _WRAPPERS:
        if encloses(text, opening, closing):
            text = text[len(opening) : -len(closing)].strip()
    return _strip_double_brackets(_CLOSING_STOP.sub("", text))


def comparable(text: str) -> str:
    """Return a cleaned text without parts that do not matter when spellings are compared."""
    text = unwrap(text)
    for pattern, replacement in _ONLY_FOR_COMPARING:
        text = pattern.sub(replacement, text)
    return text


def unwrap(text: str) -> str:
    r"""Return the content of a `\\text{}` or the like around the whole text, else the text."""
    whole = _TEXT.fullmatch(text)
    return whole.group(1).strip() if whole else text


def strip_assignment(text: str) -> str:
    r"""Return the right side of `x = 5` or `f'(2) = 5`; other texts as they are."""
    assigned = _NAME.match(text)
    return text[assigned.end() :] if assigned and text.count("=") <= 1 else text


def equations_as_list(text: str) -> str:
    r"""Return `x=4 \lor x=5` as `x=4, x=5`: the parser reads the last equation only."""
    return _JOINED_EQUATIONS.sub(", ", text) if text.count("=") > 1 and "\\begin" not in text else text


def primes_as_indices(text: str) -> str:
    """Return a text with `f'(x)` as `f_{prime}(x)`: math-verify drops primes. Those of feet, minutes and words stay.

    And with `f^{-1}(x)` as `f_{inverse}(x)`, which it would take for a power.
    """
    return _INVERSE.sub(r"\1_{inverse}", _PRIMED.sub(_with_index, text))


def strip_separators(text: str) -> str:
    r"""Return a text with `1,000\\pi` as `1000\\pi`, unless the commas separate the elements of a list."""
    joined = _GROUPED.sub(lambda number: number.group().replace(",", ""), text)
    return text if "," in joined else joined


def join_thousands(gold: str, answer: str) -> tuple[str, str]:
    """Return both with `1,000, 2,000` as `1000, 2000` if they then have equally many elements, else as they are.

    A reference has to show it, by a group that begins with 0 or one in each element: `1,200, 300` may be three numbers.
    """
    (joined_gold, in_gold), (joined_answer, _) = _joined(gold), _joined(answer)
    count, others = (len(_SEPARATOR.findall(text)) + 1 for text in (joined_gold, joined_answer))
    certain = not in_gold or ",0" in gold or in_gold == count
    return (joined_gold, joined_answer) if 1 < count == others and certain else (gold, answer)


def _joined(text: str) -> tuple[str, int]:
    """Return a list without thousands separators, and how many elements had some; `(1,200), (3,400)` are points."""
    if re.search(r"[()\[\]]", text.replace("\\left", "").replace("\\right", "")[2:-2]):
        return text, 0
    joined, count = _IN_THOUSANDS.subn(lambda number: number[0].replace(",", ""), text)
    return (text, 0) if re.search(r",\S", joined) else (joined, count)


def _with_index(found: re.Match[str]) -> str:
    index = (found["index"] or found["behind"] or "").strip("_{} ")
    return f"{found['name']}_{{{index}{'prime' * len(found['primes'])}}}"


def _binomial(above: str, below: str) -> str:
    return "\\binom" + "".join(part if part.startswith("{") else f"{{{part}}}" for part in (above, below))


def _rows(cases: re.Match[str]) -> str:
    """Return the rows of a system as a list, if each gives a name its value."""
    rows = [row.strip(" ,") for row in cases[1].split("\\\\") if row.strip(" ,")]
    return ", ".join(rows) if all(_NAME.match(row) and "," not in row for row in rows) else cases[0]


def _mixed(found: re.Match[str]) -> str:
    """`1 1/4` as one number; the fraction of a mixed number is a proper one."""
    whole, above, below = found[1].replace(",", ""), int(found[2]), int(found[3])
    return f"{whole}\\frac{{{above}}}{{{below}}}" if 0 < above < below else found[0]


def _with_zeros(found: re.Match[str]) -> str:
    """`1.5 million` as a number; a noun behind it stays."""
    if len(found[1]) > 20:  # nobody writes that
        return found[0]
    number = Decimal(found[1].replace(",", "")).scaleb(_ZEROS[found[2] or found[4]])
    return f"{number:f}" + (f"\\text{{{found[3]}" if found[3] and found[3].strip("} ") else "")


def encloses(text: str, opening: str, closing: str) -> bool:
    """Return whether the delimiters at both ends belong together, unlike those of `$1$ or $2$` and `{1},{2}`."""
    if len(text) < len(opening) + len(closing) or not (text.startswith(opening) and text.endswith(closing)):
        return False
    inside = text[len(opening) : -len(closing)]
    if inside.endswith("\\"):  # the last delimiter is escaped: `5\$`, `{1,2\}`
        return False
    if opening == closing:
        return opening not in inside
    depth = 0
    for mark in re.finditer(rf"(?<!\\){re.escape(opening)}|(?<!\\){re.escape(closing)}", inside):
        depth += 1 if mark.group() == opening else -1
        if depth < 0:
            return False
    return depth == 0


def _strip_double_brackets(text: str) -> str:
    """`((5))` as `(5)`: every level costs the parser of math-verify as much as all those inside it."""
    if "((" not in text and "{{" not in text:
        return text
    partner: dict[int, int] = {}
    opened: list[int] = []
    for found in _BRACKETS.finditer(text):
        at, mark = found.start(1), found.group(1)
        if mark in "({":
            opened.append(at)
        elif not opened or text[opened[-1]] + mark not in ("()", "{}"):
            return text  # unbalanced, or an interval such as [0,1)
        else:
            partner[opened.pop()] = at
    redundant = {
        at
        for start, end in partner.items()
        if text[start + 1] == text[start] and partner.get(start + 1) == end - 1
        for at in (start, end)
    }
    return "".join(character for at, character in enumerate(text) if at not in redundant)
