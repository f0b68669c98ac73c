"""Kinds of constraint on a text's words: which must be there, where, how often, and which must not."""

import itertools
import re
from collections import Counter

from r3env.constraints.draft import Draft
from r3env.constraints.kind import count_fault, kind
from r3env.constraints.reading import sentences, words

_DIVIDER = re.compile(r"\n[^\S\n]*\*\*\*[^\S\n]*(?=\n)")
_HYPHEN = re.compile("[-\u2010\u2011]")
_KEYWORDS = ("garden", "window", "silver", "market", "winter", "bridge", "letter", "morning")
_AVOIDED = ("the", "and", "is", "are", "of", "to", "in", "for")
_FIRST = ("Today", "Sometimes", "Imagine", "Everyone", "Once", "Outside", "Perhaps", "Remember")
_ENDINGS = ("That is all.", "Thank you for reading.", "The end.", "Now you know.", "See you soon.", "Think about it.")


def _plain(text: str) -> list[str]:
    return [word.lower() for word in words(text)]


def _allow_without(draft: Draft, letter: str) -> None:
    draft.allowed.append(lambda word: letter not in word)


@kind(
    ('Use the word "{word}".', 'The word "{word}" must be in it.'),
    'Make sure that "{word}" is one of the words.',
    'Somewhere the word "{word}" has to appear.',
    lambda draft, word: draft.include.append(word),
    word=_KEYWORDS,
)
def include_word(text: str, word: str) -> str:
    """The word is there, in any case."""
    return "" if word in _plain(text) else f'The word "{word}" is not in it.'


@kind(
    ('Use the word "{word}" exactly {n} times.', 'The word "{word}" must be in it exactly {n} times.'),
    'Write "{word}" {n} times, no more and no fewer.',
    'The number of times that "{word}" appears must be {n}.',
    lambda draft, word, n: draft.include.extend([word] * n),
    word=_KEYWORDS,
    n=(2, 3),
)
def repeat_word(text: str, word: str, n: int) -> str:
    """The word is there exactly n times, in any case."""
    found = _plain(text).count(word)
    return "" if found == n else f'The word "{word}" is in it {found} times, not {n}.'


@kind(
    ('Do not use the word "{word}".', 'Write without the word "{word}".'),
    'Leave out the word "{word}".',
    '"{word}" is a forbidden word.',
    lambda draft, word: draft.allowed.append(lambda other: other != word),
    word=_AVOIDED,
)
def avoid_word(text: str, word: str) -> str:
    """The word is not there, in any case."""
    found = _plain(text).count(word)
    return f'The word "{word}" is in it {found} times.' if found else ""


@kind(
    ('Do not use the letter "{letter}".', 'No word may have the letter "{letter}".'),
    'Leave out the letter "{letter}" altogether.',
    'The letter "{letter}" is forbidden.',
    _allow_without,
    letter=("z", "x", "q", "j", "k", "v", "w"),
)
def avoid_letter(text: str, letter: str) -> str:
    """The letter is not there, in any case."""
    found = text.lower().count(letter)
    return f'The letter "{letter}" is in it {found} times.' if found else ""


@kind(
    ('Begin with the word "{word}".', 'The first word must be "{word}".'),
    'Let "{word}" be the word that it starts with.',
    '"{word}" has to come first.',
    lambda draft, word: setattr(draft, "first", word),
    word=_FIRST,
)
def first_word(text: str, word: str) -> str:
    """The first word is this one, in any case."""
    first = next(iter(words(text)), "")
    return "" if first.lower() == word.lower() else f'Its first word is "{first}", not "{word}".'


@kind(
    ('End with the words "{ending}"', 'The last words must be "{ending}"'),
    'Let it close with exactly "{ending}"',
    'Finish on the phrase "{ending}"',
    lambda draft, ending: setattr(draft, "last", ending),
    ending=_ENDINGS,
)
def ending(text: str, ending: str) -> str:
    """The text ends with the phrase, its mark included, in any case."""
    before, found, behind = text.rstrip('"”').lower().rpartition(ending.lower())
    return f'It does not end with "{ending}"' if not found or behind or before[-1:].isalnum() else ""


@kind(
    ('Begin every sentence with the letter "{letter}".', 'Each sentence must begin with the letter "{letter}".'),
    'The first letter of each sentence has to be "{letter}".',
    'Let all sentences start with "{letter}".',
    lambda draft, letter: _start_with(draft, letter),
    letter=("T", "S", "A", "W", "M"),
)
def sentence_letter(text: str, letter: str) -> str:
    """The first word of each sentence begins with the letter, in any case."""
    starts = [found[0] for found in map(words, sentences(text)) if found]
    other = next((word for word in starts if not word.upper().startswith(letter)), "")
    return f'A sentence begins with "{other}", not with "{letter}".' if other else ""


def _start_with(draft: Draft, letter: str) -> None:
    draft.parts = 1
    draft.first = {"T": "Today", "S": "Some", "A": "All", "W": "We", "M": "Many"}[letter]


@kind(
    ('Use at least {n} words that begin with "{letter}".', 'At least {n} words must begin with the letter "{letter}".'),
    'It needs {n} or more words starting with "{letter}".',
    'No fewer than {n} of the words must start with "{letter}".',
    lambda draft, letter, n: draft.include.extend(
        {
            "b": ["bright", "big", "both", "better"],
            "c": ["calm", "clear", "come", "could"],
            "m": ["many", "more", "make", "much"],
            "s": ["soft", "some", "small", "see"],
        }[letter][:n]
    ),
    letter=("b", "c", "m", "s"),
    n=(3, 4),
)
def words_with_letter(text: str, letter: str, n: int) -> str:
    """At least n words begin with the letter."""
    found = sum(word.startswith(letter) for word in _plain(text))
    return "" if found >= n else f'It has {found} words that begin with "{letter}", fewer than {n}.'


@kind(
    ("Use no word of more than {n} letters.", "Every word must have at most {n} letters."),
    "No word may be longer than {n} letters.",
    "Keep each word to {n} letters or fewer.",
    lambda draft, n: draft.allowed.append(lambda word: len(word) <= n),
    n=(7, 8, 9),
)
def short_words(text: str, n: int) -> str:
    """No word has more than n letters; its other characters do not count."""
    longest = max(words(text), key=_letters, default="")
    found = _letters(longest)
    return f'The word "{longest}" has {found} letters, more than {n}.' if found > n else ""


def _letters(word: str) -> int:
    return sum(map(str.isalpha, word))


@kind(
    ("Use no word twice.", "Every word may be used only once."),
    "Do not repeat any word.",
    "All words must be different from each other.",
    lambda draft: setattr(draft, "distinct", True),
)
def distinct_words(text: str) -> str:
    """No word stands twice, in any case."""
    word, times = Counter(_plain(text)).most_common(1)[0] if words(text) else ("", 0)
    return f'The word "{word}" is in it {times} times.' if times > 1 else ""


@kind(
    ("Include the number {n} in digits.", "The number {n}, in digits, must be in it."),
    "Write the number {n} somewhere, in digits.",
    "The digits {n} have to appear as a number.",
    lambda draft, n: draft.include.append(str(n)),
    n=(7, 12, 40, 100),
)
def include_number(text: str, n: int) -> str:
    """The number is there in digits: 12 in `12-year-old` and `7-12`, not in 1,012, 12.5 or 12th."""
    found = any(str(n) in _HYPHEN.split(word) for word in words(text))
    return "" if found else f"The number {n} is not in it."


@kind(
    ("Do not use any digits.", "Write without digits."),
    "Leave out all digits.",
    "No digit from 0 to 9 may appear.",
    lambda draft: draft.allowed.append(str.isalpha),
)
def no_digits(text: str) -> str:
    """No digit."""
    digit = next((char for char in text if char.isdigit()), "")
    return f"It has the digit {digit}." if digit else ""


@kind(
    ("Begin and end with the same word.", "The first word must also be the last word."),
    "Let the word that it starts with be the one that it ends with.",
    "Its opening word has to come back as its closing word.",
    lambda draft: draft.inside.append(lambda listed: [*listed[:-1], listed[0].lower()]),
)
def same_ends(text: str) -> str:
    """The first and the last word are the same, in any case, and two of them."""
    found = _plain(text)
    if len(found) > 1 and found[0] == found[-1]:
        return ""
    return f'It begins with "{found[0]}" and ends with "{found[-1]}".' if found else "It has no words."


@kind(
    ("Use exactly {n} words.", "Write exactly {n} words."),
    "The text must have exactly {n} words.",
    "The word count must be {n}.",
    lambda draft, n: setattr(draft, "length", n),
    n=(10, 12, 15, 20),
)
def word_count(text: str, n: int) -> str:
    """Exactly n words."""
    return count_fault(len(words(text)), n, "words")


@kind(
    (
        "The words must be in alphabetical order of their first letters for the first {n} words.",
        "Put the first {n} words in alphabetical order.",
    ),
    "Let the first {n} words follow the alphabet.",
    "Order the first {n} words alphabetically.",
    lambda draft, n: draft.inside.append(lambda listed: [*sorted(listed[:n], key=str.lower), *listed[n:]]),
    n=(3, 4),
)
def ordered_words(text: str, n: int) -> str:
    """The first letters of the first n words do not go back in the alphabet."""
    letters = [word[0].upper() for word in words(text)[:n]]
    if len(letters) < n:
        return f"It has {len(letters)} words, fewer than {n}."
    back = next((pair for pair in itertools.pairwise(letters) if pair[0] > pair[1]), None)
    return f'Of its first {n} words one with "{back[1]}" follows one with "{back[0]}".' if back else ""


def _divide(draft: Draft) -> None:
    draft.parts, draft.separator = 2, "\n***\n"


@kind(
    ('Separate two halves of the text by a line with only "***".', 'Put a line with only "***" in the middle.'),
    'Between its two parts there must be a line that is just "***".',
    'A line consisting of "***" has to divide the text in two.',
    _divide,
)
def divided(text: str) -> str:
    """One line is `***`, with words before and after it."""
    parts = _DIVIDER.split(f"\n{text}\n")
    return "" if len(parts) == 2 and all(map(words, parts)) else 'No line "***" divides it into two parts with words.'
