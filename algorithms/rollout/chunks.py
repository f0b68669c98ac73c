"""Generate a response in chunks, each behind a context that does not grow (Delethink).

Its first chunk has `Sampling.chunk` tokens at most, C. Where it is full, the next one follows the prompt, the first
`HEAD` tokens of the response and the last ones of the chunk before, C // 2 together, and has C // 2 itself; and so on
up to `Sampling.max_response_tokens` in all. A policy learns to end a chunk with what it needs later.

Source: M. Aghajohari et al., "The Markovian Thinker", arXiv 2510.06557.
"""

from dataclasses import dataclass, field

from algorithms.rollout.types import Sampling

# The paper's for chunks of 8,192 tokens; of short ones an eighth.
HEAD = 100


@dataclass
class Chunks:
    """The chunks of a response that goes on.

    Args:
        prompt: tokens before the response.
        start: of the first chunk, among the episode's tokens.
        written: the tokens of each chunk so far.
    """

    prompt: list[int] = field(default_factory=list)
    start: int = 0
    written: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The response so far."""
        return [token for chunk in self.written for token in chunk]

    def limit(self, sampling: Sampling) -> int:
        """Return the most tokens that the next chunk may have."""
        whole = sampling.chunk or sampling.max_response_tokens
        return whole // 2 if self.written else whole

    def context(self, sampling: Sampling) -> list[int]:
        """Return what the next chunk follows: prompt and carryover."""
        chunk = sampling.chunk or 0
        head = self.written[0][: min(HEAD, chunk // 8)]
        tail = chunk // 2 - len(head)
        return [*self.prompt, *head, *self.written[-1][-tail:]]


def longest_row(prompt: int, response: int, chunk: int) -> int:
    """Return the tokens of a response's contexts together, of a prompt and a response of these lengths."""
    further = max(0, -(-(response - chunk) // max(1, chunk // 2)))
    return prompt + response + further * (prompt + chunk // 2)
