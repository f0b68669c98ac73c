"""The data between an agent's requests and the sampling for them, plain and frozen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class RequestError(Exception):
    """A request that is refused.

    Args:
        message: one line, with the fix.
        param: the field that is wrong.
        status: of HTTP.
        code: for programs.
    """

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatRequest:
    """A request that an agent sent to the endpoint.

    Args:
        messages: the conversation, each with `role` and `content`; the last one is not the policy's. Those of tools
            have a `name`, and the policy's may have `tool_calls`, the key of what it called.
        max_tokens: the most tokens that it wants; None: as many as the run allows.
        logprobs: whether the answer lists its tokens with their log-probs.
        token_ids: whether the answer lists the ids of its tokens and of its prompt's, as vLLM's server does.
        tools: what the policy may call, as JSON; empty: none.
        stream: whether the answer comes as events.
        stream_usage: whether the events end with the counts of tokens.
    """

    messages: tuple[Message, ...]
    max_tokens: int | None = None
    logprobs: bool = False
    token_ids: bool = False
    tools: str = ""
    stream: bool = False
    stream_usage: bool = False


@dataclass(frozen=True)
class NextTurn:
    """The place of a request in its episode.

    Args:
        messages: the whole conversation of the request.
        follows: the policy's turn, counted from 0 over the episode, that the conversation continues unchanged; None: it
            continues none, and begins a context of its own.
        known: how many of the messages end with that turn; the others are new.
        max_tokens: as in `ChatRequest`.
        tools: as in `ChatRequest`.
    """

    messages: tuple[Message, ...]
    follows: int | None = None
    known: int = 0
    max_tokens: int | None = None
    tools: str = ""

    @property
    def new(self) -> tuple[Message, ...]:
        """The messages after those that already exist."""
        return self.messages[self.known :]


@dataclass(frozen=True)
class Completion:
    """What the policy wrote in answer to a request.

    Args:
        text: without the token that ends the turn.
        finish_reason: `stop` or `length`.
        prompt_tokens: ids of the whole context that was sampled after.
        tokens: ids that were sampled, the one that ends the turn included.
        logprobs: of these, at the run's temperature.
        pieces: the text of each of these.
    """

    text: str
    finish_reason: str = "stop"
    prompt_tokens: Sequence[int] = ()
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    pieces: Sequence[str] = ()


def _fits(turn: NextTurn) -> None:
    """No bound is known."""


@dataclass(frozen=True)
class Policy:
    """How an episode may sample the policy; without a run there are no limits.

    Args:
        temperature: that the run samples at; None: any.
        top_p: likewise.
        max_tokens: the most tokens of an answer; None: no bound.
        problem: says why a turn cannot be answered, such as for want of room in the model's context; None: it can.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    problem: Callable[[NextTurn], str | None] = _fits
