"""Gradients of several learners as one: their sum and its norm."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor

BUCKET_ELEMENTS = 2**26


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all learners' replicas; a learner without rows takes part with zeros.

    Where no learner has a gradient none gets one: an optimizer would step on zeros as well, by its momentum.

    Args:
        parameters: the trainable ones, in the same order on every learner.
    """
    parameters = list(parameters)
    anywhere = torch.tensor(float(any(p.grad is not None for p in parameters)), device=parameters[0].device)
    torch.distributed.all_reduce(anywhere, torch.distributed.ReduceOp.MAX)
    if not anywhere:
        return
    for bucket in _buckets(parameters):
        gradients = []
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        joined = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch.distributed.all_reduce(joined)
        for gradient, total in zip(gradients, joined.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale the gradients down to a global norm of at most `limit`, unless they are not finite.

    Args:
        parameters: replicated on all learners, or sharded over them.
        limit: the largest norm; infinite to leave the gradients as they are.

    Returns:
        The norm before clipping, over all learners' shards; 0 without any gradient.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    norm = torch.nn.utils.get_total_norm(local)
    if isinstance(gradients[0], DTensor):
        mesh = gradients[0].device_mesh
        square = norm.to(mesh.device_type).square()
        torch.distributed.all_reduce(square, group=mesh.get_group())
        norm = square.sqrt()
    if math.isfinite(norm) and math.isfinite(limit):
        scale = float((limit / (norm + 1e-6)).clamp(max=1.0))
        if scale < 1.0:
            torch._foreach_mul_(local, scale)
    return float(norm)


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[Sequence[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
