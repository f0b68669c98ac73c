"""Kinds of constraint on a text's letters and marks: its case, and the punctuation that it has or lacks."""

import re

from r3env.constraints.draft import Draft
from r3env.constraints.kind import count_fault, kind
from r3env.constraints.reading import sentences, words


def _every_sentence(draft: Draft, mark: str) -> None:
    draft.mark = mark


# Case.


@kind(
    ("Write everything in lowercase letters.", "Do not use any capital letters."),
    "Use small letters only.",
    "No uppercase letter may appear anywhere.",
    lambda draft: draft.finish.append(str.lower),
)
def lowercase(text: str) -> str:
    """No capital letter."""
    capital = next((char for char in text if char.isupper()), "")
    return f"It has the capital letter {capital}." if capital else ""


@kind(
    ("Write everything in capital letters.", "Use capital letters only."),
    "Every letter must be a capital.",
    "No lowercase letter may appear anywhere.",
    lambda draft: draft.finish.append(str.upper),
)
def uppercase(text: str) -> str:
    """No small letter."""
    small = next((char for char in text if char.islower()), "")
    return f"It has the lowercase letter {small}." if small else ""


@kind(
    ("Begin every word with a capital letter.", "Capitalize each word."),
    "The first letter of each word must be a capital.",
    "Write in title case: each word starts with an uppercase letter.",
    lambda draft: draft.inside.append(lambda listed: [word.capitalize() for word in listed]),
)
def capitalized_words(text: str) -> str:
    """Each word begins with a capital letter (or a digit)."""
    small = next((word for word in words(text) if word[0].islower()), "")
    return f'The word "{small}" begins with a lowercase letter.' if small else ""


@kind(
    ("Write exactly {n} words in capital letters.", "Put exactly {n} words in all capitals, and no others."),
    "Exactly {n} of the words must be all capitals.",
    "Emphasize exactly {n} words by writing them entirely in uppercase.",
    lambda draft, n: draft.inside.append(lambda listed: [word.lower() for word in listed[:1]] + _shout(listed[1:], n)),
    n=(2, 3),
)
def capital_words(text: str, n: int) -> str:
    """Exactly n words of at least two letters are in capitals."""
    return count_fault(sum(len(word) > 1 and word.isupper() for word in words(text)), n, "words in capital letters")


def _shout(listed: list[str], n: int) -> list[str]:
    long = [place for place, word in enumerate(listed) if len(word) > 1][:n]
    return [word.upper() if place in long else word for place, word in enumerate(listed)]


# Marks.


@kind(
    ("Do not use any commas.", "Write without commas."),
    "Leave out all commas.",
    "The text must be free of commas.",
    lambda draft: None,
)
def no_commas(text: str) -> str:
    """No comma."""
    return f"It has {text.count(',')} commas." if "," in text else ""


@kind(
    ("Use exactly {n} commas.", "Your text must have exactly {n} commas."),
    "Put exactly {n} commas in it.",
    "The number of commas must be {n}.",
    lambda draft, n: draft.inside.append(
        lambda listed: [f"{word}," if place < n else word for place, word in enumerate(listed)]
    ),
    n=(2, 3, 4),
)
def commas(text: str, n: int) -> str:
    """Exactly n commas."""
    return count_fault(text.count(","), n, "commas")


@kind(
    ("Do not use any periods.", "Write without a single period."),
    "Leave out all periods.",
    "The character '.' must not appear.",
    lambda draft: _every_sentence(draft, "!"),
)
def no_periods(text: str) -> str:
    """No period."""
    return f"It has {text.count('.')} periods." if "." in text else ""


@kind(
    ("End every sentence with an exclamation mark.", "Each sentence must end with an exclamation mark."),
    "Close every sentence with '!'.",
    "Let all sentences finish in an exclamation mark.",
    lambda draft: _every_sentence(draft, "!"),
)
def exclamations(text: str) -> str:
    """Each sentence ends with an exclamation mark."""
    other = next((one for one in sentences(text) if not one.rstrip("\"'”’)]*").endswith("!")), "")
    return f'The sentence "{other}" does not end with an exclamation mark.' if other else ""


@kind(
    ("Ask exactly {n} questions in it.", "Use exactly {n} question marks."),
    "It must have exactly {n} question marks.",
    "Exactly {n} question marks must appear.",
    lambda draft, n: _lay_out_questions(draft, n),
    n=(2, 3),
)
def questions(text: str, n: int) -> str:
    """Exactly n question marks."""
    return count_fault(text.count("?"), n, "question marks")


def _lay_out_questions(draft: Draft, n: int) -> None:
    draft.inside.append(lambda listed: [*listed[:-n], *(f"{word}?" for word in listed[-n:])])
    draft.parts = draft.parts or 1
    draft.mark = ""


@kind(
    ("Put your whole answer in double quotation marks.", "Wrap the whole text in double quotation marks."),
    "Begin and end with a double quotation mark.",
    "Enclose the entire answer in double quotes.",
    lambda draft: draft.finish.append('"{}"'.format),
)
def quoted(text: str) -> str:
    """The first and the last character are double quotation marks, straight or curly."""
    inside = len(text) > 2 and text[0] in '"“' and text[-1] in '"”'
    return "" if inside else "It does not begin and end with double quotation marks."


@kind(
    ("Put exactly {n} words or phrases in parentheses.", "Use exactly {n} pairs of parentheses."),
    "It must have exactly {n} remarks in parentheses.",
    "Include exactly {n} parenthetical remarks.",
    lambda draft, n: draft.inside.append(
        lambda listed: [f"({word})" if 0 < place <= n else word for place, word in enumerate(listed)]
    ),
    n=(2, 3),
)
def parentheses(text: str, n: int) -> str:
    """Exactly n pairs of parentheses with a word in each, none inside another, and none open."""
    found = [inside for inside in re.findall(r"\(([^()]*)\)", text) if words(inside)]
    if text.count("(") != len(found) or text.count(")") != len(found):
        return "Its parentheses do not come in pairs with a word inside."
    return count_fault(len(found), n, "pairs of parentheses")
