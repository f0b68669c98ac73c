"""Prove a learner at the start: its log-probs against those of the model's own `forward`, before any training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from algorithms.learner.attention import attention_as_loaded, is_packed
from algorithms.learner.batch import TrainingSample, packed_batch, padded_batch
from algorithms.learner.chunked_logprobs import output_head
from algorithms.learner.forward import ForwardSettings, head_arguments, response_states, score
from algorithms.learner.sharding import agreed_passes, compute_device

# Mean |log-prob(learner) - log-prob(own forward)| that rounding explains, by the dtype that both compute in.
BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2}
# In bfloat16 a deep model rounds more: this multiple of what its own forward differs by from itself in float32 is
# allowed. SmolLM2-135M, which is computed correctly, was seen at 0.9 of it and above 2e-2.
OWN_ROUNDINGS = 2.0
# What cannot be computed in float32 has this multiple of the bound.
INEXACT_ROUNDINGS = 3.0
# What a decoder or a head that is called as no other raises.
_UNFIT = (TypeError, ValueError, AttributeError, KeyError, NotImplementedError)
# Share of the logits' spread that may be left when a cause explains them.
EXPLAINED = {"float32": 1e-3, "bfloat16": 3e-2}


@torch.no_grad()
def find_deviation(lm: Any, rows: Sequence[TrainingSample], settings: ForwardSettings, dtype: str) -> str:
    """Compare the log-probs that a learner computes with those of the model's own logits, at temperature 1.

    The learner's come from its own path: prompts shared, packed or padded, the head applied in chunks. The model's come
    from `lm(input_ids=…).logits`, row by row, with the attention that it was loaded with. With a sharded model, all
    learners call it with the same rows.

    Args:
        lm: the policy or the teacher, in evaluation mode.
        rows: a few, with a few hundred response tokens together.
        settings: how the learner evaluates it. A float32 head counts as one in the compute dtype.
        dtype: that the learner computes in.

    Returns:
        What is wrong, with its cause where that can be found; "" if the mean difference is within `BOUNDS`, or within
        what bfloat16 costs the model's own forward.
    """
    settings = replace(settings, temperature=1.0, float32_head=False)
    try:
        found = [logprobs for logprobs, _ in score(lm, rows, settings, entropy=False)]
    except _UNFIT as error:
        return (
            f"the learner cannot compute log-probs of this architecture ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}); fix: a model of another architecture"
        )
    expected = [_own_logprobs(lm, row, settings) for row in rows]
    deviation, bound = _deviation(found, expected), BOUNDS[dtype]
    (failed,) = agreed_passes(lm, int(not deviation <= bound))
    if failed and dtype == "bfloat16":
        # Shards are gathered in bfloat16, and weights may be in it: then nothing exact is there to compare with.
        if settings.dtype == "float32" or lm.get_output_embeddings().weight.dtype == torch.bfloat16:
            bound *= INEXACT_ROUNDINGS
        else:
            exact = [_own_logprobs(lm, row, replace(settings, dtype="float32")) for row in rows]
            bound = max(bound, OWN_ROUNDINGS * _deviation(expected, exact))
        (failed,) = agreed_passes(lm, int(not deviation <= bound))
    if not failed:
        return ""
    tokens = sum(map(len, expected))
    return (
        f"the learner's log-probs of {tokens} tokens differ from those of the model's own forward by {deviation:.3g} "
        f"nats on average, above {bound:.3g} ({dtype}): {_cause(lm, rows, settings, expected, bound, dtype)}"
    )


def _own_logits(lm: Any, row: TrainingSample, settings: ForwardSettings) -> torch.Tensor:
    """The logits that predict a row's response tokens, float32 [L, V], as the model's own forward computes them."""
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None].to(compute_device(lm))
    places = torch.from_numpy(np.flatnonzero(row.loss_mask) - 1).to(tokens.device)
    with attention_as_loaded(lm), settings.autocast(tokens.device):
        return lm(input_ids=tokens, use_cache=False).logits[0].index_select(0, places).float()


def _own_logprobs(lm: Any, row: TrainingSample, settings: ForwardSettings) -> np.ndarray:
    return _logprobs(_own_logits(lm, row, settings), row)


def _logprobs(logits: torch.Tensor, row: TrainingSample) -> np.ndarray:
    targets = torch.from_numpy(row.tokens[row.loss_mask].astype(np.int64)).to(logits.device)
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0].cpu().numpy()


def _deviation(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    ours, theirs = np.concatenate(found), np.concatenate(expected)
    overflowed = ~np.isfinite(ours) & ~np.isfinite(theirs)  # a broken policy, which the model's own forward is too
    return float(np.abs(np.where(overflowed, 0.0, ours - theirs)).mean())


def _cause(
    lm: Any,
    rows: Sequence[TrainingSample],
    settings: ForwardSettings,
    expected: Sequence[np.ndarray],
    bound: float,
    dtype: str,
) -> str:
    """Say what the difference comes from, and the fix if there is one."""
    with attention_as_loaded(lm):
        alone = [_head_logits(lm, row, settings) for row in rows]
    parts = [_logprobs(logits, row) for logits, row in zip(alone, rows, strict=True)]
    if _deviation(parts, expected) <= bound:
        if is_packed(lm):
            return "packing, as row by row they agree; fix: learners.packing=false"
        return "padding, as row by row they agree; a model whose states run over padding cannot be trained here"
    own = torch.cat([_own_logits(lm, row, settings) for row in rows])
    return f"{_difference(torch.cat(alone), own, EXPLAINED[dtype])}; fix: a model of another architecture"


def _head_logits(lm: Any, row: TrainingSample, settings: ForwardSettings) -> torch.Tensor:
    """Return the same logits, of the row alone, as the learner's head computes them from the hidden states."""
    batch = (packed_batch if is_packed(lm) else padded_batch)([row], compute_device(lm))
    with settings.autocast(batch.tokens.device):
        hidden = response_states(lm, batch)
        arguments = head_arguments(lm, settings)
        states, head = output_head(hidden, **arguments)
        return head.logits(states)


def _difference(found: torch.Tensor, own: torch.Tensor, explained: float) -> str:
    """Say how two sets of logits, float32 [N, V], differ; a number added to all logits of a token is no difference."""
    if found.shape != own.shape:
        return f"its head gives {found.shape[-1]} logits, its forward {own.shape[-1]}"
    ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (found, own))
    spread = theirs.norm()
    scale = float((ours * theirs).sum() / ours.square().sum())
    if (theirs - scale * ours).norm() <= explained * spread:
        return f"the scale of the logits, as its forward multiplies the head's product by {scale:.4g}"
    gap = theirs - ours
    if (gap - gap.mean(0)).norm() <= explained * spread:
        return "the head's bias, as its forward adds a vector to the head's product that the head does not show"
    if _is_monotone(found, own, explained):
        return "a cap, or another function of single logits, in its forward"
    return "its forward does more between the hidden states and the logits than multiply by the head"


def _is_monotone(found: torch.Tensor, own: torch.Tensor, explained: float) -> bool:
    """Return whether `own` is an increasing function of `found`, number by number."""
    ordered = own.flatten()[found.flatten().argsort()]
    falls = ordered.cummax(0).values - ordered
    return float(falls.mean()) <= explained * float(own.std())
