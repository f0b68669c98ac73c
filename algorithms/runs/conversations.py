"""Conversations as Markdown that shows a model's text literally, whatever the text contains."""

import re
from collections.abc import Mapping, Sequence

MAX_CHARACTERS = 20_000


def conversation_markdown(messages: Sequence[Mapping[str, str]], *, heading: str = "") -> str:
    """Render turns for TensorBoard's text page.

    Args:
        messages: `role` and `content` of each turn.
        heading: a line above the first turn.

    Returns:
        Markdown in which nothing of the contents acts as markup. A turn beyond 20,000 characters loses its
        middle.
    """
    parts = [f"**{literal(heading)}**"] if heading else []
    for message in messages:
        parts += [f"***{literal(message['role'])}***", literal(_shortened(message["content"]))]
    return "\n\n".join(parts)


def literal(text: str) -> str:
    """Escape text for Markdown: no character acts as markup, line breaks and indentation stay visible."""
    lines = text.encode("utf-8", "replace").decode("utf-8").split("\n")
    return "<br>".join(_literal_line(line) for line in lines)


def _literal_line(line: str) -> str:
    # Character references pass through Markdown untouched: no list of what its markup is can go stale.
    return re.sub(r"[^\w ]|_|^ +| {2,}", lambda found: "".join(f"&#{ord(letter)};" for letter in found[0]), line)


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
