"""Quote an attempt before a second turn: whole, or cut so that the second turn fits."""

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from algorithms.config.base import BaseConfig
from algorithms.models.tokenizer import chat_format
from algorithms.rollout.conversation import GAP_TEXT, decoded, last_context, last_written
from algorithms.rollout.types import Attempt
from r3env import chat
from r3env.reasoning import answer_of, response_text

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

FEEDBACK_TOKENS = 512


def context_of(model: "PretrainedConfig") -> int | None:
    """Return the tokens that a model can hold, by transformers' configuration of it; None where that has no number."""
    return getattr(model.get_text_config(), "max_position_embeddings", None)


def engine_context(config: BaseConfig, context: int | None) -> int | None:
    """Return the tokens that the engine can hold: the model's context, or the part of it that vLLM is started with."""
    bounds = (context, named_length(config) or config.measured.engine_context)
    return min((bound for bound in bounds if bound is not None), default=None)


def named_length(config: BaseConfig) -> int | None:
    """Return the tokens that the settings let a vLLM engine's longest sequence have; None where they name none."""
    runners = config.env_runners_settings
    if runners.engine != "vllm":
        return None
    named = runners.vllm.get("max_model_len", runners.max_model_len)
    return named if isinstance(named, int) and named > 0 else None


def attempt_of(tokens: np.ndarray, prompt_length: int, text: str, feedback: str = "") -> Attempt:
    """Make everything that follows a prompt the failed attempt of a second turn."""
    return Attempt(tokens[:prompt_length], tokens[prompt_length:], text, feedback)


def cut_attempt(tokens: np.ndarray, limit: int | None, gap: np.ndarray) -> np.ndarray:
    """Shorten a failed attempt for quotation: its head and its tail, with the marked gap in between.

    Args:
        tokens: int [L], the attempt.
        limit: the most tokens to return, gap included; None leaves the attempt whole.
        gap: int [M], the tokens that mark what was left out.

    Returns:
        int [≤ limit], of the dtype of `tokens`; the attempt itself where it fits. Where the limit leaves no
        room for the gap and a token on each side, the attempt's tail alone.

    Raises:
        ValueError: `limit` is negative.
    """
    if limit is None or len(tokens) <= limit:
        return tokens
    if limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    kept = limit - len(gap)
    if kept < 2:
        return tokens[len(tokens) - limit :]
    tail = kept // 2
    return np.concatenate([tokens[: kept - tail], np.asarray(gap, dtype=tokens.dtype), tokens[len(tokens) - tail :]])


class AttemptTruncator:
    """Shortens attempts, in training and in evaluations.

    Args:
        tokenizer: of the policy.
        limit: the most tokens to quote; None: as many as the model's context has room for.
        context: tokens that the model can hold; None: no bound.
        guidance: text of the turn that follows the attempt.
        max_response_tokens: room to leave for the answer.
        chat_format: of the conversations. Where they are rendered anew, and the template drops the reasoning of
            earlier turns, the answer behind it is what is quoted.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        limit: int | None,
        context: int | None,
        guidance: str,
        max_response_tokens: int,
        chat_format: chat.ChatFormat = chat.DEFAULT_FORMAT,
    ) -> None:
        self._tokenizer, self._limit, self._rerender = tokenizer, limit, chat_format.rerender
        self._drops_reasoning = chat_format.rerender and chat.drops_reasoning(tokenizer, chat_format)
        self._gap = np.array(tokenizer.encode(GAP_TEXT, add_special_tokens=False), np.int32)
        self._format, self._context, self._answer = chat_format, context, max_response_tokens
        self._guidance, self._room = guidance, self._room_before(guidance)

    @classmethod
    def of(
        cls,
        config: BaseConfig,
        tokenizer: "PreTrainedTokenizerBase",
        guidance: str,
        *,
        context: int | None,
        limit: int | None = None,
    ) -> Self:
        """Make one that leaves a configuration's answers their room in the context that its engine holds."""
        return cls(
            tokenizer,
            limit=limit,
            context=engine_context(config, context),
            guidance=guidance,
            max_response_tokens=config.env_runners_settings.context_response,
            chat_format=chat_format(config),
        )

    def text(self, tokens: np.ndarray, loss_mask: np.ndarray) -> str:
        """Decode the policy's last turn; tokens int32 [T], mask bool [T]."""
        return decoded(tokens, last_written(loss_mask), self._tokenizer)

    def shorten(self, text: str, limit: int) -> str:
        """Return a text, with its middle cut out if it has more than this many tokens."""
        tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
        kept = cut_attempt(tokens, limit, self._gap)
        return text if len(kept) == len(tokens) else response_text(self._tokenizer, kept.tolist())

    def attempt(self, tokens: np.ndarray, loss_mask: np.ndarray, text: str, feedback: str = "") -> Attempt:
        """Make a conversation the failed attempt of a second turn, whole.

        Of several contexts it is the last one. Where conversations are rendered anew, the text alone is quoted.

        Args:
            tokens: int32 [T].
            loss_mask: bool [T], True on the policy's own.
            text: of its last turn.
            feedback: the environment's on it, cut to `FEEDBACK_TOKENS`.
        """
        start = 0 if self._rerender else last_context(tokens)
        tokens, own = tokens[start:], loss_mask[start:]
        length = int(own.argmax()) if own.any() else len(own)
        return attempt_of(tokens, length, text, feedback and self.shorten(feedback, FEEDBACK_TOKENS))

    def truncate(self, attempt: Attempt, following: str = "") -> Attempt:
        """Return the attempt, its middle cut out where it is too long.

        Args:
            attempt: what is quoted.
            following: text of the turn after it; empty: its feedback, then the guidance.
        """
        if attempt.feedback and not following:
            following = f"{attempt.feedback}\n{self._guidance}"
        written = attempt.response_tokens
        if self._rerender:  # its text is what counts
            text = answer_of(attempt.text) if self._drops_reasoning else attempt.text
            written = np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)
        room = self._room_before(following) if following else self._room
        quoted = cut_attempt(written, self._limit_after(len(attempt.prompt_tokens), room), self._gap)
        if len(quoted) == len(written):
            return attempt
        text = response_text(self._tokenizer, quoted.tolist())
        return replace(attempt, response_tokens=quoted, text=text)

    def _room_before(self, following: str) -> int | None:
        """Tokens that prompt and attempt may have before a turn of this text and an answer to it."""
        if self._context is None:
            return None
        return self._context - len(chat.second_turn(self._tokenizer, following, self._format)) - self._answer

    def _limit_after(self, prompt_length: int, room: int | None) -> int | None:
        limits = [] if self._limit is None else [self._limit]
        if room is not None:
            limits.append(max(0, room - prompt_length))
        return min(limits, default=None)
