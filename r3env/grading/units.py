r"""Units after a value: `12\text{ cm}`, `90^\circ`, `5 apples`, `30 km/h`, and the currency in front of it."""

import re

_NAMES = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "dm": "decimeter decimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram gm",
    "kg": "kilogram",
    "lb": "pound lbs",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gal": "gallon",
    "s": "second sec",
    "min": "minute mins",
    "h": "hour hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "mph": "mi/h mi/hr mile/hour miles/hour mile/h miles/h",
    "kmh": "kph kmph km/h km/hr kilometer/hour kilometers/hour kilometre/hour kilometres/hour",
    "m/s": "m/sec meter/second meters/second metre/second metres/second",
    "km/s": "",
    "j": "joule",
    "n": "newton",
    "w": "watt",
    "kw": "kilowatt",
    "v": "volt",
    "hz": "hertz",
    "ohm": "",
    "mol": "mole",
    "kj": "kilojoule",
    "kwh": "kilowatt-hour",
    "pa": "pascal",
    "deg": "degree",
    "rad": "radian",
    "cent": "",
    "dollar": "usd buck",
    "euro": "eur",
    "unit": "",
    "percent": "percentage pct",
    "am": "",
    "pm": "",
}
_SYMBOLS = {"\u20ac": "euro", "\u00a3": "gbp", "\u00a5": "yen", "\u20b9": "inr", "\u00a2": "cent", "\\omega": "ohm"}
_SYMBOLS |= {f"\\mu {unit}": f"u{unit}" for unit in "mgsl"}
_CANONICAL = _SYMBOLS | {name: unit for unit, names in _NAMES.items() for name in (unit, *names.split())}
_SINGLE_LETTERS = "mgshLlJNWV"
_PRODUCTS = ("\\cdot", "\\times")
# With one of these a text says something about the value: `5\text{ or more}` is not 5.
_MEANING = re.compile(
    r"\b(?:or|and|not|no|if|when|for|(?:more|less)(?=\s+(?:than|or))|least|most|than|greater|mod|modulo|to|is|are|only"
    r"|all|none|even|odd|base"
    r"|thousands?|millions?|billions?|trillions?|hundreds?|dozens?|choose|where|with|(?<!left )over|squared|cubed"
    r"|plus|minus"
    r"|negative|factorial|tens|half|halves|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths?)\b",
    re.IGNORECASE,
)
_NUMBER_WORDS = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|twice|double|triple)\b",
    re.I,
)
_GAP = r"(?:\s|\\[,;: !]|~)*"
_POWER = rf"(?:{_GAP}\^\s*(?:\{{\s*-?\d\s*\}}|\d))?"
_COMMAND = r"\\(?:text(?:bf|rm|it|normal)?|math(?:rm|bf|it)|mbox|operatorname|rm)"
_TEXT = rf"{_COMMAND}\s*\{{[^{{}}\d]*\}}{_POWER}"
_WORDS = "|".join(
    sorted(
        (
            re.escape(name) + "s?"
            for name in [*_CANONICAL, "kJ", "kWh", "Hz", "kW", "Pa"]
            if name[0].isalpha() and len(name) > 1
        ),
        key=len,
        reverse=True,
    )
)
_ORDINAL = "(?:st|nd|rd|th)"
_TRAILING = re.compile(
    rf"(?P<value>.*?[\d)}}\]!a-zA-Z%$])(?P<unit>{_GAP}(?:{_TEXT}(?:{_GAP}(?:/|\\cdot|{_TEXT}))*"
    rf"|\^\s*(?:\{{\s*\\circ\s*\}}|\\circ)(?:{_GAP}(?:{_COMMAND}\s*\{{\s*[CF]\s*\}}|[CF]))?"
    rf"|(?:(?<![a-zA-Z\\])(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{_WORDS})(?:\s*/\s*(?:{_WORDS}|[smh]))?{_POWER})"
    rf"|(?<=\d)\s*[\u20ac\u00a3\u00a5\u20b9\u00a2]|\s*\\(?:Omega|mu\s*(?:{_COMMAND}\s*\{{\s*[mgsLlAFV]\s*\}}|[mgsLlAFV]))"
    rf"|(?<=\d)(?:\^\s*)?(?:{_ORDINAL}|\{{\s*{_ORDINAL}\s*\}}|\{{\s*\\text\s*\{{\s*{_ORDINAL}\s*\}}\s*\}})"
    rf"|(?:(?<=[\d)}}])|(?<=\s))(?:[{_SINGLE_LETTERS}]){_POWER}))\.?",
    re.DOTALL,
)
_CURRENCY = re.compile(
    rf"(?P<sign>-?)\s*(?P<currency>(?:US|CA|AU|HK|[AC](?=\\?\$))?\s?\\?\$|[\u20ac\u00a3\u00a5\u20b9]"
    rf"|(?:USD|EUR|GBP|INR|Rs\.?)(?=\s*\d)){_GAP}"
)
_TEMPERATURE = re.compile(
    rf"\\circ\}}?{_GAP}(?:{_COMMAND}\s*\{{\s*)?([CF])(?![a-z])|\b([CF])(?:elsius|ahrenheit)", re.IGNORECASE
)
_LETTERS = r"[^\W\d_]+"
_IN_PARENTHESES = re.compile(
    rf"(?P<value>.*[\d}}%!a-zA-Z]){_GAP}(?P<unit>\({_GAP}(?:{_COMMAND}\s*\{{)?(?P<inside>[^{{}}()\d]*)\}}?{_POWER}{_GAP}\)"
    rf"|{_COMMAND}\s*\{{\s*\((?P<within>[^{{}}()\d]*)\)\s*\}})\.?",
    re.DOTALL,
)
_PLAIN = r"[-+]?(?:[\d.,/\s%]|\\[dtc]?frac\s*(?:\{\d+\}|\d)\s*(?:\{\d+\}|\d))*(?<=[\d}%])"
_PER = re.compile(rf"(?P<value>{_PLAIN})\s*(?P<unit>/\s*(?:{_COMMAND}\s*\{{\s*[a-zA-Z. ]+\}}|[a-zA-Z]{{3,}}))\.?")
_FUNCTION = re.compile(
    r"\b(?:(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt)h?[nrtuxyz]?|alpha|beta|gamma|delta|theta|lambda|sigma|omega|infinity)\b",
    re.IGNORECASE,
)
_NOUN_BEHIND = re.compile(rf"(?P<value>{_PLAIN})\s+(?P<unit>[a-zA-Z]+(?:[ '\u2019-][a-zA-Z]+)*)\.?")
# Shorter words could be a product of variables.
_SHORT_NOUNS = frozenset("men cup egg cat dog pig cow hen box pie bag kid boy pen toy car bus hat".split())
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_LONGEST = 300  # characters; beyond that nobody writes units


def strip_units(gold: str, answer: str) -> tuple[str, str] | None:
    """Return both values without their units, or None if each has a known unit and they differ.

    A single letter is taken for a unit only where the other value has no letters: `2m` is not 2 where the gold is an
    expression in m; nor where both end in one, and it belongs to the last term of a sum: `n+2m` is not `(n+2)m`.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned.
    """
    gold_value, gold_unit = split(gold)
    answer_value, answer_unit = split(answer)
    if gold_unit and answer_unit:
        known, scales = [(reading(gold_unit), reading(answer_unit)) for reading in (_canonical, _scale)]
        if any(None not in pair and pair[0] != pair[1] for pair in (known, scales)):
            return None
        letters = _is_letter(gold_unit) and _is_letter(answer_unit)
        sums = _is_sum(gold_value) or _is_sum(answer_value)
        return (gold, answer) if letters and sums else (gold_value, answer_value)
    # A percentage is no sum of money, no angle and no length.
    if (gold_unit and answer.endswith("%") and _canonical(gold_unit)) or (
        answer_unit and gold.endswith("%") and _canonical(answer_unit)
    ):
        return None
    if answer_unit and (not _is_letter(answer_unit) or not re.search("[a-zA-Z]", gold)):
        return gold, answer_value
    if gold_unit and not _is_letter(gold_unit):
        return gold_value, answer
    return gold, answer


def split(text: str) -> tuple[str, str]:
    """Return a value and its unit, which is empty if there is none; a currency in front counts as one."""
    if len(text) > _LONGEST:
        return text, ""
    currency = _CURRENCY.match(text)
    if currency and currency.end() < len(text):
        return currency["sign"] + split(text[currency.end() :])[0], currency["currency"]
    noun = _noun(text)
    if noun:
        return noun
    found = _TRAILING.fullmatch(text)
    if found is None or _MEANING.search(found["unit"].replace("\\", " ")):
        return text, ""
    # Behind a letter only what is certainly a unit is one: `n\text{ is even}` says something about n.
    if found["value"][-1].isalpha() and _canonical(found["unit"]) is None:
        return text, ""
    value = found["value"].strip()
    if "circ" in found["unit"] and _TRIGONOMETRY.search(value):
        return text, ""
    return (value, found["unit"]) if _balanced(value) and not value.endswith(_PRODUCTS) else (text, "")


def _noun(text: str) -> tuple[str, str] | None:
    """A number and the noun behind it, or any value and a unit or noun in parentheses; None without one."""
    found = _IN_PARENTHESES.fullmatch(text)
    if found:
        inside = (found["inside"] or found["within"] or "").strip()
        known = inside in _SINGLE_LETTERS if len(inside) == 1 else _canonical(inside) is not None
        if not _balanced(found["value"]) or not (known or (_names_things(inside) and not found["value"][-1].isalpha())):
            return None
        return found["value"].strip(), found["unit"]
    found = _PER.fullmatch(text)
    if found:
        return found["value"], found["unit"]
    found = _NOUN_BEHIND.fullmatch(text)
    if not found:
        return None
    words = found["unit"].lower().split()
    long = any(len(word) >= 4 or word in _SHORT_NOUNS or (len(word) > 1 and word in _CANONICAL) for word in words)
    return (found["value"], found["unit"]) if long and _names_things(found["unit"]) else None


def _names_things(words: str) -> bool:
    """Return whether words may name what is counted, and are no number, operation or condition."""
    if not re.fullmatch(rf"{_LETTERS}(?:[ '\u2019/-]+{_LETTERS})*\.?", words):
        return False
    named = not words.isascii() or any(len(word) >= 3 for word in words.split())
    return named and not _FUNCTION.search(words) and not _MEANING.search(words) and not _NUMBER_WORDS.search(words)


def _scale(unit: str) -> str | None:
    """Return the letter of a scale of temperature, None for another unit."""
    found = _TEMPERATURE.search(unit)
    return (found[1] or found[2]).upper() if found else None


def _is_letter(unit: str) -> bool:
    return re.sub(_POWER, "", unit).strip() in set(_SINGLE_LETTERS)


def _is_sum(value: str) -> bool:
    depth = 0
    for found in re.finditer(r"([(\[{])|([)\]}])|(?<=[\w)}\]])\s*[-+]", value):
        depth += bool(found[1]) - bool(found[2])
        if depth == 0 and not (found[1] or found[2]):
            return True
    return False


def _canonical(unit: str) -> str | None:
    """Return the unit's symbol and power, or None if it is not in the table."""
    bare = re.sub(rf"{_COMMAND}|\\[,;: !]|[~{{}}().$]|\\circ", lambda m: "deg" if m[0] == "\\circ" else " ", unit)
    bare = re.sub(r"\^\s*(?=deg)", "", bare).lower().strip()
    if unit.endswith("$"):
        return "dollar1"
    power = "1"
    for prefix, raised in (("square ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if bare.startswith(prefix):
            bare, power = bare.removeprefix(prefix).strip(), raised
    base, _, written = bare.partition("^")
    name = re.sub(r"(?<!\s)\s+per\s+", "/", re.sub(r"^([ap]) m$", r"\1m", base.strip()))
    name = re.sub(r"(?:(?<!\s)\s+)?/\s*", "/", name)
    known = _CANONICAL.get(name) or _CANONICAL.get(name.removesuffix("s"))
    return f"{known}{written.strip() or power}" if known else None


def _balanced(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("{}", "()", "[]"))
