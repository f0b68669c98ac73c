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
    "mph": "",
    "kmh": "kph kmph km/h km/hr",
    "m/s": "",
    "km/s": "",
    "j": "joule",
    "n": "newton",
    "w": "watt",
    "kw": "kilowatt",
    "v": "volt",
    "hz": "hertz",
    "pa": "pascal",
    "deg": "degree",
    "rad": "radian",
    "cent": "",
    "dollar": "usd buck",
    "euro": "eur",
    "unit": "",
    "percent": "percentage pct",
}
_CANONICAL = {name: unit for unit, names in _NAMES.items() for name in (unit, *names.split())}
_SINGLE_LETTERS = "mgshLlJNWV"
# With one of these a text says something about the value: `5\text{ or more}` is not 5.
_MEANING = re.compile(
    r"\b(?:or|and|not|no|if|when|for|more|less|least|most|than|greater|mod|modulo|to|is|are|only|all|none|even|odd|base"
    r"|thousand|million|billion|trillion|hundred|dozen|times|choose|where|with|over|squared|cubed|plus|minus)\b",
    re.IGNORECASE,
)
_GAP = r"(?:\s|\\[,;: !]|~)*"
_POWER = rf"(?:{_GAP}\^\s*(?:\{{\s*-?\d\s*\}}|\d))?"
_COMMAND = r"\\(?:text(?:bf|rm|it|normal)?|math(?:rm|bf|it)|mbox|operatorname|rm)"
_TEXT = rf"{_COMMAND}\s*\{{[^{{}}\d]*\}}{_POWER}"
_WORDS = "|".join(sorted((re.escape(name) + "s?" for name in _CANONICAL if len(name) > 1), key=len, reverse=True))
_ORDINAL = "(?:st|nd|rd|th)"
_TRAILING = re.compile(
    rf"(?P<value>.*?[\d)}}\]!a-zA-Z%$])(?P<unit>{_GAP}(?:{_TEXT}(?:{_GAP}(?:/|\\cdot|{_TEXT}))*"
    rf"|\^\s*(?:\{{\s*\\circ\s*\}}|\\circ)(?:{_GAP}(?:{_COMMAND}\s*\{{\s*[CF]\s*\}}|[CF]))?"
    rf"|(?:(?<![a-zA-Z\\])(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{_WORDS})(?:\s*/\s*(?:{_WORDS}|[smh]))?{_POWER})"
    rf"|(?<=\d)(?:\^\s*)?(?:{_ORDINAL}|\{{\s*{_ORDINAL}\s*\}}|\{{\s*\\text\s*\{{\s*{_ORDINAL}\s*\}}\s*\}})"
    rf"|(?:(?<=[\d)}}])|(?<=\s))(?:[{_SINGLE_LETTERS}]){_POWER}))\.?",
    re.DOTALL,
)
_CURRENCY = re.compile(rf"(?P<sign>-?)\s*(?P<currency>\\?\$|[\u20ac\u00a3\u00a5\u20b9]){_GAP}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_LONGEST = 300  # characters; beyond that nobody writes units


def strip_units(gold: str, answer: str) -> tuple[str, str] | None:
    """Return both values without their units, or None if each has a known unit and they differ.

    A single letter is taken for a unit only where the other value has no letters: `2m` is not 2 where the gold is an
    expression in m.

    Args:
        gold: The reference answer, cleaned.
        answer: The answer to judge, cleaned.
    """
    gold_value, gold_unit = split(gold)
    answer_value, answer_unit = split(answer)
    if gold_unit and answer_unit:
        known = _canonical(gold_unit), _canonical(answer_unit)
        if None not in known and known[0] != known[1]:
            return None
        return gold_value, answer_value
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
        return currency["sign"] + text[currency.end() :], currency["currency"]
    found = _TRAILING.fullmatch(text)
    if found is None or _MEANING.search(found["unit"].replace("\\", " ")):
        return text, ""
    # Behind a letter only what is certainly a unit is one: `n\text{ is even}` says something about n.
    if found["value"][-1].isalpha() and _canonical(found["unit"]) is None:
        return text, ""
    value = found["value"].strip()
    if "circ" in found["unit"] and _TRIGONOMETRY.search(value):
        return text, ""
    return (value, found["unit"]) if _balanced(value) else (text, "")


def _is_letter(unit: str) -> bool:
    return re.sub(_POWER, "", unit).strip() in set(_SINGLE_LETTERS)


def _canonical(unit: str) -> str | None:
    """The unit's symbol and power, or None if it is not in the table."""
    bare = re.sub(rf"{_COMMAND}|\\[,;: !]|[~{{}}.$]|\\circ", lambda m: "deg" if m[0] == "\\circ" else " ", unit)
    bare = re.sub(r"\^\s*(?=deg)", "", bare).lower().strip()
    if unit in ("$", "\\$"):
        return "dollar1"
    power = "1"
    for prefix, raised in (("square ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if bare.startswith(prefix):
            bare, power = bare.removeprefix(prefix).strip(), raised
    base, _, written = bare.partition("^")
    name = re.sub(r"\s+per\s+", "/", base.strip())
    name = re.sub(r"\s*/\s*", "/", name)
    known = _CANONICAL.get(name) or _CANONICAL.get(name.removesuffix("s"))
    return f"{known}{written.strip() or power}" if known else None


def _balanced(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("{}", "()", "[]"))
