"""Which of an episode's turns a conversation continues."""

from collections.abc import Sequence

from r3env.agents.types import ChatRequest, Message, NextTurn


class Branches:
    """The conversations of an episode so far, as its agent knows them.

    A conversation whose first messages are those of an earlier request and the answer to it, word for word, continues
    that turn. Its tokens, those that were sampled included, stay what they are. Any other one begins anew.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Message, ...]] = []

    def place(self, request: ChatRequest) -> NextTurn:
        """Return where a request stands: behind the turn whose conversation it continues, the longest one."""
        messages, follows, known = request.messages, None, 0
        for number, conversation in enumerate(self._known):
            if known <= len(conversation) < len(messages) and _begins(messages, conversation):
                follows, known = number, len(conversation)
        return NextTurn(messages, follows, known, request.max_tokens)

    def answered(self, turn: NextTurn, text: str) -> None:
        """Note what the policy wrote next."""
        self._known.append((*turn.messages, {"role": "assistant", "content": text}))


def _begins(messages: Sequence[Message], conversation: Sequence[Message]) -> bool:
    # From its end, where conversations differ.
    return all(messages[place] == conversation[place] for place in reversed(range(len(conversation))))
