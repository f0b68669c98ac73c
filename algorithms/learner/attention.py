"""Attention over packed sequences, registered with transformers: tokens attend to their own sequence only.

No layer sees padding. On a GPU in half precision, variable-length flash attention takes the sequences as they are;
elsewhere attention alone computes in padded rectangles of sequences of similar length. Sequences that begin alike may
share what they begin with, which every layer then computes once.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from algorithms.learner.batch import TrainingSample, packed_batch, shared_batch
from algorithms.learner.kernels import attend
from algorithms.learner.packing import PackedSequences
from algorithms.learner.sharding import compute_device
from algorithms.learner.shared_sequences import SharedSequences
from algorithms.models.composite import layer_kinds

# The same function twice: a model's configuration says by the name which batches it takes.
NAME, SHARED_NAME = "packed_sequences", "packed_sequences_with_shared_prompts"

_logger = logging.getLogger(__name__)


def is_packed(lm: Any) -> bool:
    """Return whether `use_packed_attention` has prepared this model for packed batches."""
    return lm.config.get_text_config()._attn_implementation in (NAME, SHARED_NAME)


def shares_prompts(lm: Any) -> bool:
    """Return whether its packed batches hold a prompt once for all sequences that begin with it."""
    return bool(lm.config.get_text_config()._attn_implementation == SHARED_NAME)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    sequences: PackedSequences | SharedSequences | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each sequence, with the signature of transformers' attention functions.

    Without `sequences` it is transformers' own `sdpa`.

    Args:
        module: the calling attention layer.
        query: float [1, H, T, D].
        key: float [1, K, T, D], `K` dividing `H`.
        value: float [1, K, T, D].
        attention_mask: ignored when there are `sequences`.
        scaling: of the scores; None: 1 / √D.
        dropout: of the probabilities.
        sliding_window: number of tokens that a token attends to, itself included; None: all before it.
        sequences: in the one row of the batch.
        kwargs: further arguments of the model.

    Returns:
        float [1, T, H, D], and None in place of the probabilities.
    """
    if sequences is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **kwargs,
        )
    q, k, v = (tensor[0].transpose(0, 1) for tensor in _to_one_dtype(query, key, value))
    out = attend(q, k, v, sequences, scaling=scaling, dropout=dropout, window=sliding_window)
    return out[None], None


def _to_one_dtype(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Cast to autocast's dtype: under autocast, norms leave queries and keys in float32."""
    device = tensors[0].device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else tensors[-1].dtype
    return [tensor.to(dtype) for tensor in tensors]


for _name in (NAME, SHARED_NAME):
    AttentionInterface.register(_name, packed_attention)
    # For the model's other callers: packed batches bring a placeholder that keeps transformers from making a mask.
    AttentionMaskInterface.register(_name, sdpa_mask)


# Layers that `packed_attention` supports. Chunks and recurrences would continue from sequence to sequence.
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
PROBE_LENGTHS = (7, 5)
PROBE_PROMPT, PROBE_RESPONSES = 4, (5, 3, 6)
# Far above rounding in bfloat16, far below the effect of another sequence's tokens.
MAX_DEVIATION = 0.05


@contextmanager
def attention_as_loaded(lm: Any) -> Iterator[None]:
    """Compute with the attention that the model was loaded with."""
    prepared = lm.config._attn_implementation
    own = getattr(lm, "attention_as_loaded", prepared)
    if own == prepared:
        yield
        return
    lm.set_attn_implementation(own)
    try:
        yield
    finally:
        lm.set_attn_implementation(prepared)


def use_packed_attention(lm: Any, *, share_prompts: bool = True) -> bool:
    """Switch a Hugging Face causal LM to `packed_attention`, if its results stay the same.

    The check runs short sequences separately with the model's own attention, and then packed. If the hidden states
    differ, the model keeps its own attention and trains on padded batches. Reasons are attention that transformers'
    registry does not replace, capped scores, and states that continue across sequences. With `share_prompts` a second
    check does the same with sequences of one prompt; if it fails, batches are packed and share none.

    Returns whether `lm`, on any device, takes packed batches now, as `is_packed` reports later.
    """
    reason = try_packed_attention(lm)
    if reason:
        _logger.warning("%s trains on padded batches: %s", type(lm).__name__, reason)
    elif share_prompts and (reason := try_shared_prompts(lm)):
        _logger.warning("%s computes shared prompts once per response: %s", type(lm).__name__, reason)
    return is_packed(lm)


def try_packed_attention(lm: Any) -> str:
    """Prepare a model for packed batches; return why it keeps its own attention, or "" if it is prepared."""
    return "" if is_packed(lm) else _reason_against(lm)


def try_shared_prompts(lm: Any) -> str:
    """Prepare a packed model for shared prompts; return why it does not share them, or "" if it does."""
    if shares_prompts(lm):
        return ""
    rng, vocabulary = np.random.default_rng(1), lm.config.get_text_config().vocab_size
    prompt = rng.integers(0, vocabulary, PROBE_PROMPT).astype(np.int32)
    rows = []
    for length in PROBE_RESPONSES:
        tokens = np.concatenate([prompt, rng.integers(0, vocabulary, length).astype(np.int32)])
        rows.append(TrainingSample(tokens, np.arange(len(tokens)) >= len(prompt)))
    return _switch(lm, SHARED_NAME, rows, "shared prompts")


def _reason_against(lm: Any) -> str:
    unknown = set(getattr(lm.config.get_text_config(), "layer_types", None) or ()) - SUPPORTED_LAYERS
    if unknown:
        return f"packed sequences would mix in layers of the kind {', '.join(sorted(unknown))}"
    if getattr(lm.config.get_text_config(), "attn_logit_softcapping", None):
        return "its attention caps its scores"  # too small an effect for the short probe
    if not lm._can_set_attn_implementation():
        return "its attention cannot be replaced"
    rng, vocabulary = np.random.default_rng(0), lm.config.get_text_config().vocab_size
    tokens = [rng.integers(0, vocabulary, length).astype(np.int32) for length in PROBE_LENGTHS]
    rows = [TrainingSample(row, np.arange(len(row)) > 0) for row in tokens]
    own = lm.config._attn_implementation
    with _windows_passed() as passed:
        reason = _switch(lm, NAME, rows, "packed sequences")
    if not reason and _has_window(lm.config.get_text_config()) and passed == {None}:
        lm.set_attn_implementation(own)
        return "its attention has a window that is in its mask alone"  # longer than the probe
    return reason


@contextmanager
def _windows_passed() -> Iterator[set[int | None]]:
    """Collect the windows that layers pass to `packed_attention` within the block."""
    passed: set[int | None] = set()

    def noting(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> tuple[torch.Tensor, None]:
        passed.add(sliding_window)
        return packed_attention(*args, sliding_window=sliding_window, **kwargs)

    AttentionInterface.register(NAME, noting)
    try:
        yield passed
    finally:
        AttentionInterface.register(NAME, packed_attention)


def _has_window(text: Any) -> bool:
    """Return whether a layer of a text model may attend to a window alone."""
    return bool(getattr(text, "sliding_window", None)) and "sliding_attention" in layer_kinds(text)


def _switch(lm: Any, name: str, rows: list[TrainingSample], what: str) -> str:
    """Switch to an attention by name, if these rows keep their hidden states; else return what speaks against it."""
    own = lm.config._attn_implementation
    training = lm.training
    lm.attention_as_loaded = getattr(lm, "attention_as_loaded", own)
    lm.eval()
    try:
        expected = torch.cat([_alone(lm, row) for row in rows])
        lm.set_attn_implementation(name)
        found = _together(lm, rows)
    except (RuntimeError, TypeError, ValueError) as error:
        deviation, reason = float("inf"), f"{what} fail in it ({error})"
    else:
        deviation = float((found - expected).norm() / expected.norm())
        reason = f"{what} change its hidden states by {deviation:.0%}"
    lm.train(training)
    if deviation <= MAX_DEVIATION:
        return ""
    lm.set_attn_implementation(own)
    return reason


@torch.no_grad()
def _alone(lm: Any, row: TrainingSample) -> torch.Tensor:
    """Return the states that predict a row's own tokens."""
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None].to(compute_device(lm))
    predicting = torch.from_numpy(np.flatnonzero(row.loss_mask) - 1).to(tokens.device)
    return _states(lm, tokens, {}).index_select(0, predicting)


@torch.no_grad()
def _together(lm: Any, rows: list[TrainingSample]) -> torch.Tensor:
    """Return the states that predict the rows' own tokens, from the batch that the model now takes."""
    batch = (shared_batch if shares_prompts(lm) else packed_batch)(rows, compute_device(lm))
    return _states(lm, batch.tokens, batch.inputs).index_select(0, batch.predicting)


def _states(lm: Any, tokens: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    hidden: torch.Tensor = lm.get_decoder()(input_ids=tokens, use_cache=False, **inputs).last_hidden_state
    return hidden[0].float()
