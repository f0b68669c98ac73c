"""Whether a model can train on packed sequences: shown on the model itself, not guessed from its name."""

import logging
from typing import Any

import numpy as np
import torch

from algorithms.learner.attention import NAME, is_packed
from algorithms.learner.rows import TrainingRow, packed_batch
from algorithms.learner.sharding import compute_device

# Attention whose reach `packed_attention` is told. Chunks and recurrences would run on from sequence to sequence.
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
PROBE_LENGTHS = (7, 5)
# Far above what rounding does in bfloat16, far below what the tokens of another sequence do.
MOST_DEVIATION = 0.05

_logger = logging.getLogger(__name__)


def use_packed_attention(lm: Any) -> bool:
    """Switch a Hugging Face causal LM to `packed_attention`, if its results stay what they are.

    Two short sequences are run each by itself with the model's own attention, and then packed. A model that gives
    other hidden states packed (attention that transformers' registry does not reach, scores that it caps, states that
    run on) keeps its own attention, and trains on padded batches.

    Args:
        lm: the model, on any device. Its training mode is kept.

    Returns:
        Whether the model takes packed batches now; `is_packed` says so later, too.
    """
    if is_packed(lm):
        return True
    reason = _why_not(lm)
    if reason:
        _logger.warning("%s trains on padded batches: %s", type(lm).__name__, reason)
    return not reason


def _why_not(lm: Any) -> str:
    unknown = set(getattr(lm.config.get_text_config(), "layer_types", None) or ()) - KNOWN_LAYERS
    if unknown:
        return f"packed sequences would mix in layers of the kind {', '.join(sorted(unknown))}"
    if getattr(lm.config.get_text_config(), "attn_logit_softcapping", None):
        return "its attention caps its scores"  # too little to show on the short probe
    if not lm._can_set_attn_implementation():
        return "its attention cannot be exchanged"
    own = lm.config._attn_implementation
    training = lm.training
    lm.eval()
    try:
        expected = torch.cat([_alone(lm, row) for row in _probe(lm)])
        lm.set_attn_implementation(NAME)
        found = _packed(lm, _probe(lm))
    except (RuntimeError, TypeError, ValueError) as error:
        deviation, reason = float("inf"), f"packed sequences fail in it ({error})"
    else:
        deviation = float((found - expected).norm() / expected.norm())
        reason = f"packed sequences change its hidden states by {deviation:.0%}"
    lm.train(training)
    if deviation <= MOST_DEVIATION:
        return ""
    lm.set_attn_implementation(own)
    return reason


def _probe(lm: Any) -> list[TrainingRow]:
    vocabulary = lm.config.get_text_config().vocab_size
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, vocabulary, length).astype(np.int32) for length in PROBE_LENGTHS]
    return [TrainingRow(row, np.arange(len(row)) > 0) for row in tokens]


@torch.no_grad()
def _alone(lm: Any, row: TrainingRow) -> torch.Tensor:
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None].to(compute_device(lm))
    return _states(lm, tokens, {})


@torch.no_grad()
def _packed(lm: Any, rows: list[TrainingRow]) -> torch.Tensor:
    batch = packed_batch(rows, compute_device(lm))
    return _states(lm, batch.tokens, batch.inputs)


def _states(lm: Any, tokens: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    hidden: torch.Tensor = lm.get_decoder()(input_ids=tokens, use_cache=False, **inputs).last_hidden_state
    return hidden[0].float()
