"""The final answer in a response: what its last complete box holds."""

import re

# A box is `\boxed{` or `\fbox{`; the extra backslashes are those of a line break or of doubled escaping. They
# are bounded so that a response of backslashes only is still read in linear time.
_TOKEN = re.compile(r"\\{1,4}(?:boxed|fbox)\s*\{|\\[\s\S]|[{}]")
_BOX_COMMAND = re.compile(r"\\{1,4}(?:boxed|fbox)\s*(?=\{)")


def final_answer(response: str) -> str | None:
    r"""The content of the last complete box outside the thinking, or None if there is no answer.

    Everything before the last `</think>` is thinking, whether the response or the prompt opened it. Thinking
    that was opened and never closed leaves no answer. A box that is never closed does not count; of nested
    boxes the outermost does, and the commands of the inner ones are removed.

    Args:
        response: Everything that the policy wrote.
    """
    _, _, visible = response.rpartition("</think>")
    if "<think>" in visible:
        return None
    content = _last_box(visible)
    if content is None:
        return None
    return _BOX_COMMAND.sub("", content).strip() or None


def _last_box(text: str) -> str | None:
    """Content of the complete box that ends last, in one pass: a response may hold thousands of open ones."""
    found: tuple[int, int] | None = None
    open_braces: list[int | None] = []
    for token in _TOKEN.finditer(text):
        written = token.group()
        if written == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                found = start, token.start()
        elif written == "{":
            open_braces.append(None)
        elif written.endswith("{") and len(written) > 2:
            open_braces.append(token.end())
    return None if found is None else text[found[0] : found[1]]
