"""Find the turn of an episode that a conversation continues."""

from collections.abc import Sequence

from r3env.agents.tool_calls import calls_key, split_calls
from r3env.agents.types import ChatRequest, Message, NextTurn, RequestError


class Branches:
    """The conversations of an episode so far, as its agent knows them.

    A conversation whose first messages are those of an earlier request and the answer to it, word for word, continues
    that turn. Its tokens, those that were sampled included, stay what they are. Any other one begins anew, and so does
    one with other tools: the prompt shows them.
    """

    def __init__(self) -> None:
        self._known: list[tuple[str, tuple[Message, ...]]] = []
        self._calls: dict[str, str] = {}  # as they were written, by what identifies them

    def place(self, request: ChatRequest) -> NextTurn:
        """Return where a request belongs: after the turn whose conversation it continues, the longest one.

        Raises:
            RequestError: it has calls that the policy did not make.
        """
        messages, follows, known = tuple(map(self._as_written, request.messages)), None, 0
        for number, (tools, conversation) in enumerate(self._known):
            if tools == request.tools and known <= len(conversation) < len(messages):
                if _begins(messages, conversation):
                    follows, known = number, len(conversation)
        return NextTurn(messages, follows, known, request.max_tokens, request.tools)

    def answered(self, turn: NextTurn, text: str) -> None:
        """Record what the policy wrote next."""
        if turn.tools:
            content, calls = split_calls(text, len(self._known))
            if calls:
                self._calls[calls_key(calls)] = text[len(content) :]
        self._known.append((turn.tools, (*turn.messages, {"role": "assistant", "content": text})))

    def _as_written(self, message: Message) -> Message:
        """Put the policy's calls behind the content of its message, as it wrote them."""
        key = message.get("tool_calls")
        if key is None:
            return message
        if key not in self._calls:
            fix = "fix: pass the answer's tool_calls on unchanged, or write what was called into the content"
            raise RequestError(f"messages: the policy has made no such tool_calls in this episode; {fix}", "messages")
        return {"role": message["role"], "content": message["content"] + self._calls[key]}


def _begins(messages: Sequence[Message], conversation: Sequence[Message]) -> bool:
    # From its end, where conversations differ.
    return all(messages[place] == conversation[place] for place in reversed(range(len(conversation))))
