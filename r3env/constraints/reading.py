"""How a text is read: its words, sentences, lines and paragraphs."""

import re

_WORD = re.compile(r"[^\W_]+(?:(?:['’\u2010\u2011-]|(?<=\d)[.,](?=\d))[^\W_]+)*")  # one-two, 1,000 and 3.5 are one
_MARKER = re.compile(r"^\s*(?:[-*•]|\d+[.)]|#+)\s+")
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]*]*(?=\s|$)")


def words(text: str) -> list[str]:
    """Return the words of a text as they are written; a list's numbers are none."""
    return [word for line in lines(text) for word in _WORD.findall(_MARKER.sub("", line))]


def lines(text: str) -> list[str]:
    """Return the lines that are not empty, without spaces at their ends."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def paragraphs(text: str) -> list[str]:
    """Return what empty lines separate."""
    return [part.strip() for part in re.split(r"\n(?:[^\S\n]*\n)+", text) if part.strip()]


def sentences(text: str) -> list[str]:
    """Return the sentences, each with its end mark: a mark or the end of a line ends one, if it has a word."""
    found = []
    for line in lines(text):
        line, start = _MARKER.sub("", line), 0
        for end in (*(match.end() for match in _END.finditer(line)), len(line)):
            if _WORD.search(line, start, end):
                found.append(line[start:end].strip())
            start = end
    return found


def forms(word: str) -> re.Pattern[str]:
    """Return a pattern of a word or phrase in any case, in the singular or plural."""
    # libraries, potatoes, foxes; bees
    rules = (("ies", "(?:y|ies)"), ("oes", "oe?s?"), ("xes", "x(?:es)?"), ("s", "s?"))
    end, either = next(((end, either) for end, either in rules if word.endswith(end)), ("", "s?"))
    stem = re.escape(word.removesuffix(end))
    return re.compile(rf"(?<![^\W_]){stem}{either}(?![^\W_])", re.IGNORECASE)
