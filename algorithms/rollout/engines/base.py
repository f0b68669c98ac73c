"""What every generation engine does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from algorithms.rollout.types import Sampling


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class GenerationRequest:
    """One response to sample.

    Args:
        tokens: int32 [P], the whole context.
        seed: the only source of randomness of this response, so that batching does not change what is drawn.
    """

    tokens: np.ndarray
    seed: int
    sampling: Sampling


@dataclass(frozen=True)
class Completion:
    """A sampled response.

    Args:
        tokens: int32 [L], the end-of-turn token included when one was sampled.
        logprobs: float32 [L], log-probs under the distribution at the sampling temperature.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    finish_reason: FinishReason


class Engine(Protocol):
    """A model that samples responses and whose weights can be replaced in place.

    `context_length` is how many tokens a prompt and its response may have together; None: no bound.
    """

    weights_version: int
    context_length: int | None

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order of the requests."""
        ...

    def load_weights(self, weights: Mapping[str, Any] | Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the weights by a Hugging Face state dict (tied heads included) and remember its version."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
