"""Shard a policy over the learners (FSDP2): each holds its part of every weight, gradient and moment."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(lm: Any, device: torch.device, *, dtype: torch.dtype = torch.float32, offload: bool = False) -> None:
    """Shard a Hugging Face causal LM in place over the default process group.

    Each decoder layer is one group of collectives; the embeddings and the head, which may be the same tensor, are
    another, and the rest is one more. Gradients of the learners are summed, not averaged.

    Args:
        lm: the model, whole, on any device; the same on every learner.
        device: that this learner computes on.
        dtype: of the gathered weights and so of the computation; shards and gradients keep the model's.
        offload: whether shards, gradients and the optimizer's moments stay on the CPU.

    Raises:
        ValueError: the model does not name its layers.
        RuntimeError: there is no process group.

    Source: `torch.distributed.fsdp.fully_shard`.
    """
    decoder = lm.get_decoder()
    names = set(getattr(lm, "_no_split_modules", None) or ())
    layers = [module for module in decoder.modules() if type(module).__name__ in names]
    if not layers:
        raise ValueError(f"{type(lm).__name__} does not say what its layers are (_no_split_modules)")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    world = torch.distributed.group.WORLD
    if world is None:
        raise RuntimeError("there is no process group to shard over; call torch.distributed.init_process_group first")
    mesh = DeviceMesh.from_group(world, device.type)
    policies: dict[str, Any] = {
        "mesh": mesh,
        # Ids go in, and the embeddings give the compute dtype: there are no inputs to cast.
        "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
    }
    for layer in layers:
        fully_shard(layer, **policies)
    # Gathered from the decoder's forward to the end of backward: the head's weight is read in between, without one.
    embeddings = {id(module): module for module in (lm.get_input_embeddings(), lm.get_output_embeddings())}
    fully_shard(list(embeddings.values()), reshard_after_forward=False, **policies)
    fully_shard(decoder, **policies)
    for module in _groups(lm):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo supports no other


def is_sharded(lm: Any) -> bool:
    """Return whether `shard` was applied."""
    return isinstance(lm.get_decoder(), FSDPModule)


def reshard(lm: Any) -> None:
    """Free gathered weights: parameters are shards again. Does nothing for a model that is not sharded."""
    for module in _groups(lm):
        module.reshard()


def compute_device(lm: Any) -> torch.device:
    """Return the device of the model's forward; offloaded shards are elsewhere."""
    if is_sharded(lm) and _mesh(lm).device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return next(lm.parameters()).device


def agreed_passes(lm: Any, *counts: int) -> tuple[int, ...]:
    """Return the maximum of each count over the learners that share the model's shards.

    Every forward and backward pass gathers shards from all learners: they have to run the same number of passes.

    Returns:
        The counts themselves if the model is not sharded.
    """
    if not is_sharded(lm):
        return counts
    largest = torch.tensor(counts, device=compute_device(lm))
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=_mesh(lm).get_group())
    return tuple(int(count) for count in largest)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a sharded tensor, detached, on all learners together. Any other tensor is returned as it is."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    # Offloaded shards go to the device first: its process group has no CPU backend.
    local = tensor.to_local().to(tensor.device_mesh.device_type)
    on_device = DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride(), run_check=False
    )
    return on_device.full_tensor()


@torch.no_grad()
def put(value: torch.Tensor, into: torch.Tensor) -> None:
    """Copy a whole tensor, or this learner's part of it, into a tensor that `whole` gathers; no communication."""
    if not isinstance(into, DTensor):
        into.copy_(value)
        return
    value = value.to(into.device_mesh.device_type)
    part = distribute_tensor(value, into.device_mesh, into.placements, src_data_rank=None)
    into.to_local().copy_(part.to_local())


def _groups(lm: nn.Module) -> list[FSDPModule]:
    return [module for module in lm.modules() if isinstance(module, FSDPModule)]


def _mesh(lm: nn.Module) -> DeviceMesh:
    return next(parameter for parameter in lm.parameters() if isinstance(parameter, DTensor)).device_mesh


BUCKET_ELEMENTS = 2**26


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all learners' replicas; a learner without rows takes part with zeros.

    If no learner has a gradient, none gets one: an optimizer steps on zeros as well, by its momentum.

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
        joined = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
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
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in local]
    norm = torch.linalg.vector_norm(torch.stack(norms))
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
