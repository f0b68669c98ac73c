"""Log-probs and entropies of tokens without ever holding [tokens, vocabulary] logits whole."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def token_statistics(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    entropy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the log-prob of each target token and the entropy of the distribution that it was drawn from.

    Logits exist for `chunk` tokens at a time: in forward, and again in backward, which computes them afresh.
    They are multiplied out in the dtype of `hidden`; softmax and entropy are float32 whatever that is.

    Args:
        hidden: float [N, D], last hidden states at the positions that predict `targets`.
        weight: float [V, D], the output embedding.
        targets: integer [N], token ids.
        temperature: divides the logits, as in sampling.
        chunk: tokens per chunk.
        bias: float [V], the output embedding's bias.
        softcap: caps logits at ±softcap by tanh, before the temperature (Gemma).
        entropy: whether to compute entropies.

    Returns:
        float32 [N] log-probs, differentiable in `hidden`, `weight` and `bias`, and float32 [N] entropies over
        the full vocabulary in nats, detached; None instead of them with `entropy=False`.

    Raises:
        ValueError: shapes do not fit, or `temperature`, `chunk` or `softcap` is not positive.
    """
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1] or weight.shape[1:] != hidden.shape[1:]:
        shapes = [tuple(tensor.shape) for tensor in (hidden, weight, targets)]
        raise ValueError(f"expected hidden [N, D], weight [V, D] and targets [N], got {shapes}")
    if temperature <= 0 or chunk < 1 or (softcap is not None and softcap <= 0):
        raise ValueError(f"temperature, chunk and softcap must be positive, got {temperature}, {chunk}, {softcap}")
    # One cast for all chunks: float32 masters under a bfloat16 forward.
    weight = weight.to(hidden.dtype)
    bias = None if bias is None else bias.to(hidden.dtype)
    differentiable = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    recompute = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in differentiable)

    logprobs, entropies = [], []
    for start in range(0, max(len(targets), 1), chunk):
        rows = slice(start, start + chunk)
        arguments = (hidden[rows], weight, bias, targets[rows].long(), temperature, softcap, entropy)
        if recompute:
            part = checkpoint(_chunk_statistics, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            part = _chunk_statistics(*arguments)
        logprobs.append(part[0])
        entropies.append(part[1])
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def _chunk_statistics(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
    softcap: float | None,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = functional.linear(hidden, weight, bias).float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = functional.log_softmax(logits, dim=-1).gather(-1, targets[:, None]).squeeze(-1)
    if not entropy:
        return logprobs, None
    # Last on purpose: the recomputation in backward stops once it has what gradients need, before this line.
    with torch.no_grad():
        return logprobs, torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
