"""How a failed attempt is quoted before a second turn: whole, or cut so that the second turn fits."""

import functools
from dataclasses import replace
from typing import Any, Self

import numpy as np

from algorithms.configuration.machine_settings import RLModuleSettings
from algorithms.models.names import context_length
from algorithms.r3_grpo.reflection import cut_attempt
from algorithms.rollout.types import Attempt
from r3env import chat

GAP_TEXT = "\n[...]\n"


def attempt_of(tokens: np.ndarray, prompt_length: int, text: str) -> Attempt:
    """Everything that follows a prompt, as the failed attempt of a second turn."""
    return Attempt(prompt_tokens=tokens[:prompt_length], response_tokens=tokens[prompt_length:], text=text)


def engine_context(config: Any) -> int | None:
    """The model's context, or what vLLM was told to hold of it."""
    runners, module = config.env_runners_settings, config.rl_module_settings
    told = runners.vllm.get("max_model_len") if runners.engine == "vllm" else None
    bounds = (
        _model_context(module.model, module.revision, module.trust_remote_code),
        told if isinstance(told, int) and told > 0 else None,
    )
    return min((bound for bound in bounds if bound is not None), default=None)


@functools.cache
def _model_context(model: str, revision: str | None, trust_remote_code: bool) -> int | None:
    """Read once: an evaluation days later must not depend on whether the model's folder is still there."""
    return context_length(RLModuleSettings(model=model, revision=revision, trust_remote_code=trust_remote_code))


class Quoter:
    """Shortens attempts, in training and in evaluations.

    Args:
        tokenizer: of the policy.
        limit: the most tokens to quote; None: as many as the model's context has room for.
        context: tokens that the model can hold; None: no bound.
        guidance: text of the turn that follows the attempt.
        max_response_tokens: room to leave for the answer.
    """

    def __init__(
        self, tokenizer: Any, *, limit: int | None, context: int | None, guidance: str, max_response_tokens: int
    ) -> None:
        self._tokenizer, self._limit = tokenizer, limit
        self._gap = np.array(tokenizer.encode(GAP_TEXT, add_special_tokens=False), np.int32)
        second_turn = len(chat.next_turn(tokenizer, [], guidance)) + max_response_tokens
        self._room = None if context is None else context - second_turn

    @classmethod
    def of(cls, config: Any, tokenizer: Any, guidance: str, *, limit: int | None = None) -> Self:
        """Leaves what a configuration's answers need of the context that its engine has."""
        return cls(
            tokenizer,
            limit=limit,
            context=engine_context(config),
            guidance=guidance,
            max_response_tokens=config.env_runners_settings.max_response_tokens,
        )

    def quote(self, attempt: Attempt) -> Attempt:
        """The attempt, its middle cut out where it is too long."""
        written = attempt.response_tokens
        quoted = cut_attempt(written, self._limit_after(len(attempt.prompt_tokens)), self._gap)
        if len(quoted) == len(written):
            return attempt
        text = self._tokenizer.decode(quoted.tolist(), skip_special_tokens=True)
        return replace(attempt, response_tokens=quoted, text=text)

    def _limit_after(self, prompt_length: int) -> int | None:
        limits = [] if self._limit is None else [self._limit]
        if self._room is not None:
            limits.append(max(0, self._room - prompt_length))
        return min(limits, default=None)
