"""Measure the pages' readability: `python -m website.readability [PAGE …] [--at REV] [--long]`."""

import argparse
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from website.texts import sentences, text_at, words

LONG = 35
# Words of this house that a reader of the field has another word for.
PRIVATE = (
    r"goes? on|going on|went on|mend(?:s|ed|ing)?|told apart|tells? of|tells? apart|plays? (?:the|its|an|episodes?)|"
    r"played|asks? the (?:model|policy|engine)|draws? on|as if nothing|nobody|arrives?|a step\b(?! )|is told|are told|"
    r"cut off|right answers?|wrong answers?|what is left|as (?:long|far) as that"
)
_BE = r"(?:is|are|was|were|be|been|being|gets?|got)"
_IRREGULAR = (
    r"made|given|taken|found|kept|held|left|set|put|cut|read|sent|built|lost|drawn|shown|known|written|run|meant|told"
)
_PASSIVE = re.compile(rf"\b{_BE}\s+(?:\w+ly\s+|not\s+|never\s+)?(?:\w{{2,}}ed|{_IRREGULAR})\b", re.IGNORECASE)
_PRIVATE = re.compile(rf"\b(?:{PRIVATE})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Readability:
    """Readability of one page or several.

    Args:
        sentences: their number.
        words: in them.
        long: sentences of more than `LONG` words.
        passive: sentences with a passive verb, as far as a pattern sees it.
        private: uses of words that the field has others for.
    """

    sentences: int
    words: int
    long: int
    passive: int
    private: int

    @property
    def row(self) -> str:
        """Words, words per sentence, shares of long and passive sentences, private words per thousand."""
        count = max(self.sentences, 1)
        return (
            f"{self.words:7,}  {self.words / count:5.1f}  {self.long / count:6.1%}  {self.passive / count:6.1%}"
            f"  {1000 * self.private / max(self.words, 1):5.1f}"
        )


def measure(pages: Sequence[str]) -> Readability:
    """Measure texts together."""
    found = [sentence for page in pages for sentence in sentences(page)]
    lengths = [len(words(sentence)) for sentence in found]
    return Readability(
        len(found),
        sum(lengths),
        sum(length > LONG for length in lengths),
        sum(bool(_PASSIVE.search(sentence)) for sentence in found),
        sum(len(_PRIVATE.findall(sentence)) for sentence in found),
    )


def main() -> None:
    """Print a line per page, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="default: README.md and all of docs/ but the generated settings")
    parser.add_argument("--at", metavar="REV", help="as they were at a revision of git; default: as they are")
    parser.add_argument("--long", action="store_true", help=f"list the sentences of more than {LONG} words")
    arguments = parser.parse_args()
    pages = {name: _text(name, arguments.at) for name in arguments.pages or _all(arguments.at)}
    width = max(map(len, pages))
    print(f"{'page':{width}}    words  w/sen   >{LONG} w  passive  private/1000")
    for name, text in pages.items():
        print(f"{name:{width}}  {measure([text]).row}")
        if arguments.long:
            for sentence in sentences(text):
                if len(words(sentence)) > LONG:
                    print(f"    {len(words(sentence))}: {sentence}")
    print(f"{'all':{width}}  {measure(list(pages.values())).row}")


def _all(revision: str | None) -> list[str]:
    command = ["git", "ls-tree", "-r", "--name-only", revision] if revision else ["git", "ls-files"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    generated = ("docs/config.md", "docs/reference/settings.md", "docs/reference/command-line.md")
    return [
        name
        for name in listed
        if (name == "README.md" or name.startswith("docs/")) and name.endswith(".md") and name not in generated
    ]


def _text(name: str, revision: str | None) -> str:
    if revision is None:
        return Path(name).read_text(encoding="utf-8")
    return text_at(revision, name)


if __name__ == "__main__":
    main()
