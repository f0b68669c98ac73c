"""Log-probs and entropies of tokens from chunks of logits: [tokens, vocabulary] is never allocated.

Two functions for two kinds of loss. `chunked_logprobs` is differentiable in the usual sense and computes each chunk's
logits a second time in backward: for any loss. `chunked_logprobs_and_gradient` calls for the loss's slope while a
chunk's logits exist and computes them once: for losses in which a token's slope depends on its own log-prob alone.

Kernels of other libraries (liger-kernel, cut-cross-entropy) are not used: they need a GPU, and give a loss or
log-probs without the entropies that ranking and the log read from the same logits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from algorithms.learner.injected_grad import GradientSum, inject_grad
from algorithms.losses.entropy import differentiable_entropies, entropies_of, gradient_of_entropies
from algorithms.models.products import linear

# Rows of a chunk that a second tensor of their logits' size is made for.
ROWS = 64

# Tokens of a chunk. Each chunk reads and writes the head's whole float32 gradient, so on a GPU it is larger: for
# 1.5B parameters and 150,000 words that gradient takes 0.9 GB, the logits of 2,048 tokens 1.2 GB (computed).
CHUNK, CHUNK_ON_GPU = 384, 2048

# dLoss/dlogprob of a chunk's tokens, float32 [n], and dLoss/dentropy where the loss has one, from their log-probs and
# entropies, float32 [n], and their place among all N.
Slope = Callable[[torch.Tensor, torch.Tensor | None, slice], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class OutputHead:
    """The output embedding of a causal LM, and what is applied to its logits.

    Args:
        weight: float [V, D], in the dtype to multiply in.
        bias: float [V], in the same dtype.
        temperature: divides the logits, as in sampling.
        softcap: caps logits at ±softcap by tanh, before the temperature (Gemma).
        scale: multiplies the logits, before the cap (Granite, Cohere, Falcon-H1).
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    temperature: float
    softcap: float | None
    scale: float = 1.0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, V] logits of the distribution that is sampled from, for hidden states [n, D]."""
        # Plain products under autocast, too: the dtypes are chosen already.
        with torch.autocast(hidden.device.type, enabled=False):
            logits = linear(hidden, self.weight, self.bias).float()
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        # Nothing else refers to this tensor, and no derivative needs its old value.
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    @property
    def slope(self) -> float:
        """The derivative of the logits by the product, where nothing is capped."""
        return self.scale / self.temperature

    def cap_slope(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Return the derivative of the cap at these (capped) logits, float32 [n, V]; None without a cap."""
        return None if self.softcap is None else 1.0 - (logits * (self.temperature / self.softcap)).square_()


def default_chunk(device: torch.device) -> int:
    """Return the tokens of a chunk on this device."""
    return CHUNK if device.type == "cpu" else CHUNK_ON_GPU


def chunked_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    float32: bool = False,
    entropy: bool = True,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-prob of each target token and the entropy of the distribution that it was sampled from.

    Logits exist for `chunk` tokens at a time: in forward, and again in backward, which recomputes them.
    They are multiplied out in the dtype of `hidden` (autocast's, where that is on) or in float32; softmax and entropy
    are float32.

    Args:
        hidden: float [N, D], last hidden states at the positions that predict `targets`.
        weight: float [V, D], the output embedding.
        targets: integer [N], token ids.
        temperature: divides the logits, as in sampling.
        chunk: tokens per chunk; None: `default_chunk` of the device.
        bias: float [V], the output embedding's bias.
        softcap: caps logits at ±softcap by tanh, before the temperature (Gemma).
        scale: multiplies the logits, before the cap (Granite, Cohere, Falcon-H1).
        float32: whether to multiply in float32 whatever the dtype of `hidden`.
        entropy: whether to compute entropies.
        entropy_gradient: whether they are differentiable too.

    Returns:
        float32 [N] log-probs, differentiable in `hidden`, `weight` and `bias`, and float32 [N] entropies over
        the full vocabulary in nats, by default detached; None instead of them with `entropy=False`.

    Raises:
        ValueError: shapes do not fit, or `temperature`, `chunk`, `softcap` or `scale` is not positive.
    """
    chunk = default_chunk(hidden.device) if chunk is None else chunk
    _check(hidden, weight, targets, temperature, chunk, softcap, scale)
    differentiate = torch.is_grad_enabled() and any(_trains(tensor) for tensor in (hidden, weight, bias))
    hidden, head = output_head(
        hidden, weight, bias, temperature=temperature, softcap=softcap, scale=scale, float32=float32
    )
    logprobs, entropies = [], []
    for rows in _chunks(len(targets), chunk):
        tokens = targets[rows].long()
        if differentiate:
            part = checkpoint(
                _recomputed_statistics,
                head,
                hidden[rows],
                tokens,
                entropy,
                entropy_gradient,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            part = _distribution(head.logits(hidden[rows]), tokens, entropy)[:2]
        logprobs.append(part[0])
        entropies.append(part[1])
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def chunked_logprobs_and_gradient(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    slope: Slope,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    scale: float = 1.0,
    float32: bool = False,
    entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the result of `chunked_logprobs`, and the loss's gradient from the same logits.

    A chunk's logits become its log-probs, then its gradient, and are freed: three matrix products, where
    `chunked_logprobs` takes four. The weight's gradient is summed over chunks in float32.

    Args:
        hidden: as in `chunked_logprobs`, like all that is not named here.
        weight: float [V, D].
        targets: integer [N].
        slope: the loss's derivatives by log-probs and, if it has one, by entropies of the tokens `rows`, as
            `slope(logprobs, entropies, rows)`. Called once a chunk, in order, without gradients; never when nothing
            needs one.
        temperature: as there.
        chunk: as there.
        bias: float [V].
        softcap: as there.
        scale: as there.
        float32: as there.
        entropy: whether to compute entropies.

    Returns:
        float32 [N] log-probs, detached; entropies as there; and the scalar 0 whose `backward()` gives `hidden`,
        `weight` and `bias` the loss's gradient (`injected_grad`).

    Raises:
        ValueError: as there, or `slope` returned another shape than [n].
    """
    chunk = default_chunk(hidden.device) if chunk is None else chunk
    _check(hidden, weight, targets, temperature, chunk, softcap, scale)
    total = GradientSum.of(hidden, weight, bias)
    logprobs, entropies = [], []
    with torch.no_grad():
        states, head = output_head(
            hidden, weight, bias, temperature=temperature, softcap=softcap, scale=scale, float32=float32
        )
        for rows in _chunks(len(targets), chunk):
            own, own_entropies = _statistics_and_gradient(
                head,
                states[rows],
                targets[rows].long(),
                rows,
                slope if total.needed else None,
                total,
                entropy,
            )
            logprobs.append(own)
            if own_entropies is not None:
                entropies.append(own_entropies)
    injected = inject_grad(hidden, weight, bias, total)
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None, injected


@torch.no_grad()
def chunked_vocabulary_logprobs(
    hidden: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None, **head_settings: Any
) -> torch.Tensor:
    """Return the mean over the vocabulary of the log-probs at each position, float32 [N], from chunks of logits.

    Args:
        hidden: float [N, D], last hidden states.
        weight: float [V, D], the output embedding.
        bias: float [V], its bias.
        head_settings: further arguments of `output_head`.
    """
    states, head = output_head(hidden, weight, bias, **head_settings)
    parts = []
    for rows in _chunks(len(hidden), default_chunk(hidden.device)):
        logits = head.logits(states[rows])
        parts.append(logits.mean(dim=-1) - logits.logsumexp(dim=-1))
    return torch.cat(parts)


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    chunk: int,
    softcap: float | None,
    scale: float,
) -> None:
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1] or weight.shape[1:] != hidden.shape[1:]:
        shapes = [tuple(tensor.shape) for tensor in (hidden, weight, targets)]
        raise ValueError(f"expected hidden [N, D], weight [V, D] and targets [N], got {shapes}")
    if temperature <= 0 or chunk < 1 or scale <= 0 or (softcap is not None and softcap <= 0):
        found = f"{temperature}, {chunk}, {softcap}, {scale}"
        raise ValueError(f"temperature, chunk, softcap and scale must be positive, got {found}")


def _trains(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def output_head(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    float32: bool = False,
) -> tuple[torch.Tensor, OutputHead]:
    """Return hidden states and head in the dtype to multiply in: one cast for all chunks."""
    dtype = torch.float32 if float32 else compute_dtype(hidden)
    head = OutputHead(weight.to(dtype), None if bias is None else bias.to(dtype), temperature, softcap, scale)
    return hidden.to(dtype), head


def _chunks(length: int, chunk: int) -> Iterator[slice]:
    """Slices that cover `length` tokens; an empty one where there are none, so that results have their shape."""
    for start in range(0, max(length, 1), chunk):
        yield slice(start, min(start + chunk, length))


def _recomputed_statistics(
    head: OutputHead, hidden: torch.Tensor, targets: torch.Tensor, entropy: bool, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = head.logits(hidden)
    logprobs = functional.log_softmax(logits, dim=-1).gather(-1, targets[:, None]).squeeze(-1)
    if not entropy:
        return logprobs, None
    if entropy_gradient:
        return logprobs, differentiable_entropies(logits)
    # Last on purpose: the recomputation in backward stops once it has what gradients need, before this line.
    with torch.no_grad():
        return logprobs, entropies_of(logits.softmax(dim=-1))


def _statistics_and_gradient(
    head: OutputHead,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    rows: slice,
    slope: Slope | None,
    total: GradientSum,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A chunk's log-probs and entropies, its gradient added to `total`. All that is [n, V] is gone on return."""
    logits = head.logits(hidden)
    cap_slope = head.cap_slope(logits) if slope else None
    logprobs, entropies, probabilities = _distribution(logits, targets, entropy)
    if slope:
        by_logprob, *by_entropy = slope(logprobs, entropies, rows)
        if by_logprob.shape != logprobs.shape:
            raise ValueError(f"slope gave shape {list(by_logprob.shape)} for log-probs {list(logprobs.shape)}")
        by_logprob = by_logprob * head.slope
        more = None
        if by_entropy and entropies is not None:
            more = gradient_of_entropies(probabilities, entropies, by_entropy[0] * head.slope)
        by_logit = _gradient_of_logits(probabilities, targets, by_logprob, more, cap_slope).to(head.weight.dtype)
        del logits, probabilities, cap_slope
        total.add(rows, by_logit, hidden, head.weight)
    return logprobs, entropies


def _distribution(
    logits: torch.Tensor, targets: torch.Tensor, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Log-probs [n], entropies [n] and probabilities [n, V], which take the place of `logits` [n, V]."""
    logprobs = logits.new_empty(len(logits))
    entropies = torch.empty_like(logprobs) if entropy else None
    for start in range(0, len(logits), ROWS):
        rows = slice(start, start + ROWS)
        all_logprobs = functional.log_softmax(logits[rows], dim=-1)
        logprobs[rows] = all_logprobs.gather(-1, targets[rows, None]).squeeze(-1)
        probabilities = torch.exp(all_logprobs, out=logits[rows])
        if entropies is not None:
            # An impossible token adds 0, not 0 times infinity; a certain one may have a log-prob a rounding above 0.
            information = all_logprobs.clamp_(torch.finfo(torch.float32).min, 0.0).neg_()
            entropies[rows] = information.mul_(probabilities).sum(dim=-1)
    return logprobs, entropies, logits


def _gradient_of_logits(
    probabilities: torch.Tensor,
    targets: torch.Tensor,
    slope: torch.Tensor,
    more: torch.Tensor | None,
    cap_slope: torch.Tensor | None,
) -> torch.Tensor:
    """`slope · (onehot(target) - p) + more`, through the cap: float32 [n, V], in the place of the probabilities."""
    gradient = probabilities.mul_(-slope[:, None])
    gradient.scatter_add_(-1, targets[:, None], slope[:, None])
    if more is not None:
        gradient.add_(more)
    return gradient if cap_slope is None else gradient.mul_(cap_slope)


def compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    """Return autocast's dtype where that is on, as for any matrix product; otherwise that of the hidden states."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
