"""A page's parts: prose, code, numbers and links."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=ticks)`*[ \t]*$", re.DOTALL | re.MULTILINE
)
_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
_LINK = re.compile(r"(?P<start>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s]+)\)")
_NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?%?(?!\w)")
_BULLET = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(*\[`\d_])")


def text_at(revision: str, path: str) -> str:
    """Return a file's text at a revision of git."""
    return subprocess.run(["git", "show", f"{revision}:{path}"], capture_output=True, text=True, check=True).stdout


def fences(text: str, *languages: str) -> list[str]:
    """Return the code blocks of these languages, in order; `""` is a block that names none."""
    return [match["code"] for match in _FENCE.finditer(text) if match["language"] in languages]


def without_fences(text: str) -> str:
    """Return the text without its code blocks."""
    return _FENCE.sub("", text)


def code_spans(text: str) -> list[str]:
    """Return what stands in single backticks outside code blocks."""
    return _CODE.findall(without_fences(text))


def links(text: str) -> list[str]:
    """Return the targets of links and pictures outside code blocks."""
    return [match["target"] for match in _LINK.finditer(without_fences(text))]


def with_links(text: str, new: Callable[[str], str]) -> str:
    """Replace the target of every link and picture outside code blocks.

    Args:
        text: of a page.
        new: takes a target; returns what replaces it.
    """

    def replaced(part: str) -> str:
        return _LINK.sub(lambda match: f"{match['start']}{new(match['target'])})", part)

    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [replaced(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, replaced(text[end:])])


def frozen(text: str) -> Counter[str]:
    """Count what an editorial pass must not change: code, numbers outside of it, links.

    Args:
        text: of a page, or a string of the code.
    """
    found: Counter[str] = Counter()
    without = _FENCE.sub(lambda match: _counted(found, "block", match[0]), text)
    without = _LINK.sub(lambda match: _counted(found, "link", match["target"]) + match["text"], without)
    without = _SPAN.sub(lambda match: _counted(found, "code", " ".join(match[2].split())), without)
    found.update(f"number {number}" for number in _NUMBER.findall(without))
    return found


def _counted(found: Counter[str], kind: str, what: str) -> str:
    found[f"{kind} {what}"] += 1
    return " "


def sentences(page: str) -> Iterator[str]:
    """Yield a page's sentences: no code blocks, tables, headings or formulas; code and links as a word each."""
    text = _FENCE.sub("\n\n", page)
    text = _FORMULA.sub("X", _LINK.sub(r"\g<text>", _SPAN.sub("X", text)))
    for paragraph in re.split(r"\n\s*\n", text):
        for lines in _items(paragraph):
            for sentence in _END.split(" ".join(lines)):
                if re.search(r"[A-Za-z]{2}", sentence):
                    yield sentence.strip()


def _items(paragraph: str) -> Iterator[list[str]]:
    """Cut a paragraph at its bullets, without tables, headings, comments and pictures."""
    lines: list[str] = []
    for line in paragraph.splitlines():
        if line.lstrip().startswith(("|", "#", "<", "---")):
            continue
        if _BULLET.match(line):
            yield lines
            lines = []
        lines.append(_BULLET.sub("", line.strip()))
    yield lines


def words(sentence: str) -> list[str]:
    """Split a sentence; punctuation stays with its word."""
    return [word for word in sentence.split() if re.search(r"\w", word)]
