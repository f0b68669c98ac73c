"""Write a text that meets several constraints at once: the proof that a prompt can be satisfied."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_FILLER = (
    "a i we you they he she it my our this that each most some many all good new old big small long short kind "
    "calm warm cold soft loud quick slow wild free rich deep high low near far first last early late often soon "
    "always never today here there see like love find know hear keep help hold make take give show bring learn "
    "watch think feel walk work play rest grow live move turn look and but or so if when with from into over "
    "under about after before day night hour year home hill tree road town river sea sun rain wind light color "
    "sound story idea people friend child world life time way part side place thing song trip zebra quiz jump "
    "young quiet simple gentle bright clever useful common famous hidden golden modern"
).split()


@dataclass
class Draft:
    """What a text is to be like; each kind of constraint changes it, and `write` writes the text.

    Args:
        topic: Words that it names.
        length: How many words to write.
        parts: Sentences, items, lines or paragraphs; 0 where none are wanted.
        longest: Words of a sentence at most.
        mark: What ends a sentence.
        separator: What stands between two parts.
        label: What stands before part i.
        include: Further words.
        allowed: What every further word has to fulfill.
        distinct: Whether no word may stand twice.
        first: The first word.
        last: The last words.
        inside: Changes of the list of words, in turn.
        finish: Changes of the text, in turn.
    """

    topic: str
    length: int
    parts: int = 0
    longest: int = 12
    mark: str = "."
    separator: str = " "
    label: Callable[[int], str] = lambda _: ""
    include: list[str] = field(default_factory=list)
    allowed: list[Callable[[str], bool]] = field(default_factory=list)
    distinct: bool = False
    first: str = ""
    last: str = ""
    inside: list[Callable[[list[str]], list[str]]] = field(default_factory=list)
    finish: list[Callable[[str], str]] = field(default_factory=list)

    def write(self, rng: random.Random) -> str:
        """Return a text; whether it meets the constraints, their checks decide."""
        chosen = [*self.topic.split(), *self.include]
        pool = [word for word in _FILLER if word not in chosen and all(fits(word) for fits in self.allowed)]
        needed = max(0, self.length - len(chosen) - len(self.first.split()) - len(self.last.split()))
        if not pool or (self.distinct and needed > len(pool)):
            return ""
        filler = rng.sample(pool, needed) if self.distinct else rng.choices(pool, k=needed)
        middle = filler[: len(filler) // 2]
        listed = [*self.first.split(), *middle, *chosen, *filler[len(middle) :], *self.last.split()]
        for change in self.inside:
            listed = change(listed)
        text = self.separator.join(
            f"{self.label(number)}{_sentence(part)}{self.mark}" for number, part in enumerate(self._split(listed), 1)
        )
        if self.last:
            text = text.removesuffix(self.mark)
        for change_text in self.finish:
            text = change_text(text)
        return text

    def _split(self, listed: Sequence[str]) -> list[Sequence[str]]:
        parts = self.parts or max(1, math.ceil(len(listed) / self.longest))
        bounds = [round(len(listed) * number / parts) for number in range(parts + 1)]
        return [listed[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def _sentence(listed: Sequence[str]) -> str:
    text = " ".join(listed)
    return text[:1].upper() + text[1:]
