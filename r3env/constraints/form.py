"""Kinds of constraint on a text's form: its case, its marks, its sentences and its layout."""

import json
import re

from r3env.constraints.draft import Draft
from r3env.constraints.kind import count_fault, kind
from r3env.constraints.reading import lines, paragraphs, sentences, words

_COUNTS = (2, 3, 4)


def _lay_out(draft: Draft, n: int, separator: str, label: str = "") -> None:
    draft.parts, draft.separator = n, separator
    draft.label = lambda number: label.format(number)


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
    n=_COUNTS,
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


# Sentences and layout.


@kind(
    ("Use exactly {n} sentences.", "Write exactly {n} sentences."),
    "The text must have exactly {n} sentences.",
    "The number of sentences must be {n}.",
    lambda draft, n: _lay_out(draft, n, " "),
    n=_COUNTS,
)
def sentence_count(text: str, n: int) -> str:
    """Exactly n sentences."""
    return count_fault(len(sentences(text)), n, "sentences")


@kind(
    ("Every sentence must have at most {n} words.", "Use at most {n} words in each sentence."),
    "No sentence may be longer than {n} words.",
    "Keep each sentence to {n} words or fewer.",
    lambda draft, n: setattr(draft, "longest", min(draft.longest, n)),
    n=(6, 8, 10),
)
def short_sentences(text: str, n: int) -> str:
    """No sentence has more than n words."""
    longest = max((len(words(one)) for one in sentences(text)), default=0)
    return f"Its longest sentence has {longest} words, more than {n}." if longest > n else ""


@kind(
    (
        'Answer with exactly {n} bullet points, each on its own line beginning with "- ".',
        'Write a list of exactly {n} lines, each beginning with "- ".',
    ),
    'Make it {n} bullet points; each line starts with "- ".',
    'Format the text as {n} list items, one a line, each starting with "- ".',
    lambda draft, n: _lay_out(draft, n, "\n", "- "),
    n=_COUNTS,
)
def bullets(text: str, n: int) -> str:
    """Exactly n lines, each of which begins with `- ` and has a word."""
    other = next((line for line in lines(text) if not line.startswith("- ") or not words(line)), "")
    if other:
        return f'The line "{other}" is no bullet point that begins with "- ".'
    return count_fault(len(lines(text)), n, "bullet points")


@kind(
    (
        'Answer with a numbered list of exactly {n} items: lines that begin with "1. ", "2. " and so on.',
        'Number exactly {n} lines: "1. " before the first, "2. " before the second, and so on.',
    ),
    'Make it a list of {n} lines, numbered "1. ", "2. " and so on.',
    'Format the text as an ordered list with {n} entries ("1. ", "2. ", …).',
    lambda draft, n: _lay_out(draft, n, "\n", "{}. "),
    n=_COUNTS,
)
def numbered(text: str, n: int) -> str:
    """Exactly n lines, numbered from 1, each with a word."""
    for number, line in enumerate(lines(text), 1):
        if not line.startswith(f"{number}. ") or not words(line):
            return f'The line "{line}" does not begin with "{number}. ".'
    return count_fault(len(lines(text)), n, "numbered lines")


@kind(
    ("Write exactly {n} paragraphs with an empty line between them.", "Use {n} paragraphs, separated by empty lines."),
    "It must have exactly {n} paragraphs, with an empty line in between.",
    "Divide the text into {n} paragraphs by blank lines.",
    lambda draft, n: _lay_out(draft, n, "\n\n"),
    n=(2, 3),
)
def paragraph_count(text: str, n: int) -> str:
    """Exactly n paragraphs."""
    return count_fault(len(paragraphs(text)), n, "paragraphs")


@kind(
    ("Write exactly {n} lines.", "Spread the text over exactly {n} lines."),
    "The text must have exactly {n} lines.",
    "Break the text into {n} lines.",
    lambda draft, n: _lay_out(draft, n, "\n"),
    n=_COUNTS,
)
def line_count(text: str, n: int) -> str:
    """Exactly n lines that are not empty."""
    return count_fault(len(lines(text)), n, "lines")


@kind(
    ('Begin with a title: a first line that begins with "# ".', 'The first line must be a title after "# ".'),
    'Put a title above it, on a line that starts with "# ".',
    'Open with a heading in Markdown: a line starting with "# ".',
    lambda draft: draft.finish.append(lambda text: f"# {draft.topic.capitalize()}\n{text}"),
)
def title(text: str) -> str:
    """The first line is a title after `# `, and text follows it."""
    first, *rest = lines(text) or [""]
    if not first.startswith("# ") or not words(first):
        return 'Its first line is no title that begins with "# ".'
    return "" if rest else "No text follows its title."


@kind(
    (
        'Answer with a JSON object with the single key "text", whose value is the text.',
        'Write {{"text": "…"}}, valid JSON.',
    ),
    'Give JSON alone: an object whose one key is "text".',
    'The answer must be valid JSON with one string under "text".',
    lambda draft: draft.finish.append(lambda text: json.dumps({"text": text})),
)
def as_json(text: str) -> str:
    """A JSON object with the one key `text`, whose value is text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "It is not valid JSON."
    only = isinstance(value, dict) and list(value) == ["text"] and isinstance(value["text"], str)
    return "" if only else 'It is no JSON object with the single key "text".'


@kind(
    ("End with exactly {n} hashtags.", "Put exactly {n} hashtags at the end, and none before."),
    "Its last words must be exactly {n} hashtags.",
    "Finish the text with {n} hashtags.",
    lambda draft, n: draft.finish.append(lambda text: " ".join([text, *("#fine", "#good", "#true")[:n]])),
    n=(2, 3),
)
def hashtags(text: str, n: int) -> str:
    """Exactly n hashtags, all at the end."""
    tags = re.findall(r"#\w+", text)
    if tags and re.search(r"(?:#\w+\s*)+$", text) is None:
        return "It does not end with a hashtag."
    behind = re.search(r"(?:#\w+[\s,]*)+$", text)
    if behind and len(re.findall(r"#\w+", behind[0])) != len(tags):
        return "Some of its hashtags are not at the end."
    return count_fault(len(tags), n, "hashtags")
