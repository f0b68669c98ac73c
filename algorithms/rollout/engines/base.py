"""The interface of all inference engines."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from algorithms.rollout.types import Sampling, VersionSpans
from algorithms.rollout.weight_sync.serialization import TENSORS, Weights, as_weights

# The level of sleep at which the next weights are on their way, and the old ones need not be kept anywhere.
DROP_WEIGHTS = 2


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class GenerationRequest:
    """One response to sample.

    Args:
        tokens: int32 [P], the whole context.
        seed: the only source of randomness of this response, so that batching does not change what is sampled.
        asked: nothing is sampled; the completion is this token alone, with its log-prob at temperature 1. The context
            needs room for two tokens.
    """

    tokens: np.ndarray
    seed: int
    sampling: Sampling
    asked: int | None = None


@dataclass(frozen=True)
class Completion:
    """A sampled response.

    Args:
        tokens: int32 [L], the end-of-turn token included when one was sampled.
        logprobs: float32 [L], log-probs under the distribution at the sampling temperature.
        versions: of the weights that sampled the tokens; empty: all are of those that the engine holds.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    finish_reason: FinishReason
    versions: VersionSpans = ()


class Engine(ABC):
    """A model that samples responses and whose weights can be replaced in place.

    Weights may be replaced between two steps, also while requests are unfinished: what is sampled from then on is of
    the new ones, and each completion says which weights sampled which of its tokens.

    Requests are submitted under keys of the caller's choice, and `step` returns what has finished. An engine with
    `continuous_batching` takes a request into the batch that is decoding. One without decodes fixed batches to their
    ends: a batch, and with it every bit of the result, depends only on what was submitted between two rounds.

    Attributes:
        continuous_batching: whether a submitted request joins the running batch.
        weights_version: of the weights that responses are sampled with.
        context_length: tokens that a prompt and its response may have together; None: no bound.
    """

    continuous_batching: bool
    weights_version: int = 0
    context_length: int | None = None

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """Submitted requests whose completions `step` has not returned."""

    @abstractmethod
    def submit(self, key: int, request: GenerationRequest) -> None:
        """Accept a request; its completion is returned under `key`, which no unfinished request may have."""

    @abstractmethod
    def step(self) -> list[tuple[int, Completion]]:
        """Advance, and return the completions that are done with it, under their keys.

        A streaming engine decodes one token of every running response, another one a whole batch. Without unfinished
        requests there is nothing to do and nothing comes back.
        """

    @abstractmethod
    def abort(self, keys: Collection[int]) -> None:
        """Drop these requests: their completions are never returned. Unknown keys are no error."""

    def load_weights(self, weights: Weights | Mapping[str, Any] | Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the weights by a Hugging Face state dict (tied heads included) and remember its version.

        Raises:
            RuntimeError: names or shapes differ from the engine's; nothing has been changed.
        """
        weights = as_weights(weights)
        self.start_weights(weights.shapes)
        for tensors in weights.buckets():
            self.add_weights({TENSORS: tensors})
        self.finish_weights(version)

    def start_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Begin to replace the weights; there is no version until `finish_weights`. Wakes a sleeping engine's weights.

        Args:
            shapes: of all tensors that will come, by their Hugging Face names.

        Raises:
            RuntimeError: names or shapes differ from the engine's; nothing has been changed.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no weights")

    def add_weights(self, update: Mapping[str, Any]) -> None:
        """Take some of the announced tensors.

        Args:
            update: `{"tensors": [(name, tensor), …]}`, or what the engine's weight transfer makes of a bucket.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no weights")

    def end_transfer(self, version: int) -> None:  # noqa: B027  # who copies what it gets holds nothing
        """Let go of what the sender shares, which it may free before `finish_weights`; all tensors have come.

        Raises:
            RuntimeError: some of them have not.
        """

    def finish_weights(self, version: int) -> None:
        """Sample with the new weights from now on, and drop what was computed with the old ones.

        Raises:
            RuntimeError: some of the announced tensors have not come.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no weights")

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order of the requests.

        Raises:
            RuntimeError: other requests are unfinished, and their completions would be lost.
        """
        if self.unfinished:
            raise RuntimeError(f"{self.unfinished} submitted requests are unfinished; step() them to their ends first")
        for key, request in enumerate(requests):
            self.submit(key, request)
        completions: dict[int, Completion] = {}
        while self.unfinished:
            completions.update(self.step())
        return [completions[key] for key in range(len(requests))]

    def sleep(self, level: int = 1) -> None:  # noqa: B027  # nothing to free is a good answer
        """Give the GPU's memory back, where the engine can: level 1 keeps a copy of the weights, 2 drops them."""

    def close(self) -> None:  # noqa: B027  # see sleep
        """Free the model."""
