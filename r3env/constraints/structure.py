"""Kinds of constraint on a text's structure: its sentences, lines, paragraphs and lists, and what frames it."""

import json
import re

from r3env.constraints.draft import Draft
from r3env.constraints.kind import count_fault, kind
from r3env.constraints.reading import lines, paragraphs, sentences, words

_COUNTS = (2, 3, 4)


def _lay_out(draft: Draft, n: int, separator: str, label: str = "") -> None:
    draft.parts, draft.separator = n, separator
    draft.label = lambda number: label.format(number)


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
    return "" if any(map(words, rest)) else "No text follows its title."


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
    if json_value(text) is not None:
        return ""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "It is not valid JSON."
    return 'It is no JSON object with the single key "text".'


def json_value(text: str) -> str | None:
    """Return the text in a JSON object with the one key `text`; None for anything else."""
    try:
        value = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    only = text.lstrip().startswith("{") and len(value) == 1 and value[0][0] == "text"
    return value[0][1] if only and isinstance(value[0][1], str) else None


@kind(
    ("End with exactly {n} hashtags.", "Put exactly {n} hashtags at the end, and none before."),
    "Its last words must be exactly {n} hashtags.",
    "Finish the text with {n} hashtags.",
    lambda draft, n: draft.finish.append(lambda text: " ".join([text, *("#fine", "#good", "#true")[:n]])),
    n=(2, 3),
)
def hashtags(text: str, n: int) -> str:
    """Exactly n hashtags, all at the end."""
    tags = list(re.finditer(r"#\w+", text))
    if tags and text[tags[-1].end() :].strip():
        return "It does not end with a hashtag."
    if tags and not re.fullmatch(r"(?:#\w+[\s,]*)+", text[tags[0].start() :]):
        return "Some of its hashtags are not at the end."
    return count_fault(len(tags), n, "hashtags")
