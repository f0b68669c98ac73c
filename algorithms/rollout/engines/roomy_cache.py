"""A key-value cache with room behind its last token: a decoding step writes one token and copies nothing."""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

# Tokens of room that a layer gets when it has to grow; what it holds is copied then.
ROOM = 64


def roomy_cache(config: Any) -> DynamicCache:
    """Give a model's cache; layers that keep all tokens are roomy, others (sliding windows, states) as they were."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class RoomyLayer(DynamicLayer):
    """One layer's keys and values, float [B, heads, tokens, head size]: views of larger buffers."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Start without tokens."""
        super().lazy_initialization(key_states, value_states)
        self.buffers = [states[:, :, :0] for states in (key_states, value_states)]
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens; returns the keys and values of all, views that the next update leaves as they are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[-2]
        for place, states in enumerate((key_states, value_states)):
            if self.length > self.buffers[place].shape[-2]:
                self.buffers[place] = _enlarged(self.buffers[place], start, self.length + ROOM)
            self.buffers[place][:, :, start : self.length] = states
        return self._view()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        if self.is_initialized:
            self.buffers = [buffer.index_select(0, indices) for buffer in self.buffers]
            self._view()

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)
        return self.keys, self.values


def _enlarged(buffer: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    larger = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[-1])
    larger[:, :, :length] = buffer[:, :, :length]
    return larger
