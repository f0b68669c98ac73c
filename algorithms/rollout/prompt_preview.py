"""Render the tokens of a prompt in the driver, as an env runner would, without a rollout."""

import logging
from typing import Self

import gymnasium
import numpy as np
from transformers import PreTrainedTokenizerBase

from algorithms.config.base import BaseConfig
from algorithms.models.tokenizer import chat_format
from algorithms.rollout.agent_turns import give_up
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import Prompt, Request, Sampling

_logger = logging.getLogger(__name__)


class PromptRenderer:
    """Resets an environment with a prompt and writes the first turn.

    Args:
        turns: write it.
        environment: nobody else uses it meanwhile.
        context: tokens that the model can hold; None: no bound.
    """

    def __init__(self, turns: Turns, environment: gymnasium.Env[str, str], context: int | None = None) -> None:
        self._turns, self._environment, self._context = turns, environment, context

    @classmethod
    def of(
        cls,
        config: BaseConfig,
        tokenizer: PreTrainedTokenizerBase,
        environment: gymnasium.Env[str, str],
        context: int | None,
    ) -> Self:
        """Make one that writes as a configuration's env runners do; `context` is the model's."""
        return cls(Turns(tokenizer, None, chat_format(config)), environment, context)

    def render(self, prompt: Prompt, room: int = 1) -> np.ndarray | None:
        """Return the tokens before the policy's first one, int32 [P].

        Args:
            prompt: what would be answered; its size and sampling do not matter.
            room: tokens that have to fit behind it.

        Returns:
            None where the environment fails, which is logged, or where there is less room.
        """
        episode = Episode(Request(0, prompt, 0, 0, Sampling()), self._environment, 0)
        try:
            self._turns.open(episode)
        except (Exception, SystemExit) as error:  # a user's environment may raise anything
            _logger.warning("a prompt of query %s cannot be rendered: %r", prompt.uid, error)
            return None
        finally:
            give_up(self._environment)
        if self._context and len(episode.tokens) + room > self._context:
            return None
        return np.array(episode.tokens, np.int32)
