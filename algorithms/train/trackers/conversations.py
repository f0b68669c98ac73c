"""Sample conversations for trackers: Markdown for TensorBoard's text page, rows of a table for the others."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from algorithms.rollout.conversation import conversation
from algorithms.rollout.types import Rollout

MAX_CHARACTERS = 20_000


def conversation_rows(step: int, rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return one row per conversation; a turn beyond 20,000 characters loses its middle."""
    return [
        {
            "step": step,
            "query": rollout.uid,
            "context": rollout.context,
            "reward": float(rollout.reward),
            "verdict": str(rollout.verdict),
            "conversation": "\n\n".join(
                f"{turn['role']}: {_encodable(_shortened(turn['content']))}" for turn in conversation(rollout)
            ),
        }
        for rollout in rollouts
    ]


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
    return "<br>".join(_literal_line(line) for line in _encodable(text).split("\n"))


def _literal_line(line: str) -> str:
    # Character references pass through Markdown untouched: no list of what its markup is can go stale.
    return re.sub(r"[^\w ]|_|^ +| {2,}", lambda found: "".join(f"&#{ord(letter)};" for letter in found[0]), line)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
