"""A page's parts: prose, code and links."""

import re
from collections.abc import Callable

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=ticks)`*[ \t]*$", re.DOTALL | re.MULTILINE
)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?P<start>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s]+)\)")


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
