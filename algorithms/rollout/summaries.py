"""Continue an episode behind the policy's own summary, where its context would grow too long (SUPO).

Before each turn but the first there has to be room for a response and, behind it, for a summary, within
`Sampling.max_context_tokens`. Where there is not, the policy is asked for the summary at once. The next context is the
first prompt, the summary as the policy's own turn, and what the environment said last. An episode that needs more than
`Sampling.max_summaries`, or has no room behind a summary either, ends as truncated.

Source: M. Lu et al., "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management",
arXiv 2510.06727. There the last action and its observation are dropped before the summary, which joins the user turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INSTRUCTION: Mapping[str, str] = {
    "role": "user",
    "content": "Your context is nearly full. Do not continue the task yet: first summarize what you have done and "
    "found out, and what remains to be done. You will then see the task and this summary alone.",
}


@dataclass
class Summaries:
    """The summaries of an episode.

    Args:
        first_messages: turns of the first prompt.
        first_tokens: tokens of the first prompt, without a response prefix.
        places: of the summaries among the episode's messages.
        unread: what the environment has said, while the policy writes a summary; else None.
    """

    first_messages: int = 0
    first_tokens: int = 0
    places: list[int] = field(default_factory=list)
    unread: Sequence[Mapping[str, str]] | None = None

    def has_last(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Return whether the last turn of an episode is a summary."""
        return self.places[-1:] == [len(messages) - 1]

    def shown(self, messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        """Return the turns of an episode that its last context holds."""
        return [*messages[: self.first_messages], *messages[self.places[-1] :]] if self.places else [*messages]
