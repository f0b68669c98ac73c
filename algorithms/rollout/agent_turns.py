"""The engine's side of an environment that runs an agent, and what it reports of the agent's requests."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from transformers import PreTrainedTokenizerBase

from algorithms.rollout.engines.base import Completion
from algorithms.rollout.types import Sampling
from r3env.agents.server import connection_limits
from r3env.agents.types import Completion as ChatCompletion
from r3env.agents.types import NextTurn, Policy

# In `Rollout.counts` of an agent's episode: its requests, beyond the first, that continue no conversation.
CHANGED_PREFIXES = "changed_prefixes"
_MOST_AGENTS = 512

_logger = logging.getLogger(__name__)


def takes_completions(environment: gymnasium.Env[str, str]) -> bool:
    """Return whether an environment runs agents: it passes completions to them, and their requests to us."""
    return bool(getattr(environment.unwrapped, "takes_completions", False))


def episodes_at_once(environment: gymnasium.Env[str, str]) -> int | None:
    """Return how many episodes an env runner begins at once; None: as many as it can.

    Each agent waits for its answer with a connection open, and a client that agents share has a limit: `openai`'s
    1,000. Beyond it an agent cannot ask, so a round that waits for its first request never begins.
    """
    own: int | None = getattr(environment.unwrapped, "max_episodes", None)
    agents = (min(_MOST_AGENTS, connection_limits().known),) if takes_completions(environment) else ()
    return min((*agents, own) if own else agents, default=None)


def policy_for(sampling: Sampling, problem: Callable[[NextTurn], str | None]) -> Policy:
    """Return how an agent can sample the policy in an episode with these settings."""
    return Policy(sampling.temperature, sampling.top_p, sampling.max_response_tokens, problem)


def next_turn_of(info: Mapping[str, Any]) -> NextTurn | None:
    """Return the request that an info holds; None in that of an environment without an agent."""
    turn = info.get("next_turn")
    return turn if isinstance(turn, NextTurn) else None


def token_limit(turn: NextTurn | None) -> float:
    """Return the most tokens that an agent wants in answer to a request; infinite where it sets no limit."""
    return math.inf if turn is None or turn.max_tokens is None else turn.max_tokens


def chat_completion(
    tokenizer: PreTrainedTokenizerBase, text: str, prompt: Sequence[int], completion: Completion
) -> ChatCompletion:
    """Return a completion as an agent gets it."""
    tokens = completion.tokens.tolist()
    return ChatCompletion(
        text=text,
        finish_reason=str(completion.finish_reason),
        prompt_tokens=prompt,
        tokens=tokens,
        logprobs=completion.logprobs.tolist(),
        pieces=[str(tokenizer.decode([token])) for token in tokens],
    )


def give_up(environment: gymnasium.Env[str, str]) -> None:
    """Have an environment let go of an episode that does not go on."""
    try:
        environment.unwrapped.abandon()  # type: ignore[attr-defined]
    except Exception:  # a foreign environment has none, or another of that name
        _logger.debug("%s cannot let go of an episode", environment, exc_info=True)
