"""What tests read of learners, and put back."""

from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from torch import nn

from algorithms.learner.group import each_learner, tensor_buckets
from algorithms.learner.weights import optimizer_tensors, put_optimizer_tensors


def policy_state(learner_group: LearnerGroup) -> tuple[int, dict[str, Any]]:
    """Return the version of the learners' weights, and the whole weights, adapters merged, by module id.

    Raises:
        LearnerDied: a learner is gone, or out of memory; any other error of a learner is raised as it is.
    """
    (version, *_) = each_learner(learner_group, lambda learner: learner._weights_seq_no)
    merged: dict[str, Any] = {}
    for bucket in tensor_buckets(learner_group, "weights"):
        merged |= bucket
    return int(version), {DEFAULT_MODULE_ID: merged}


def pack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return `optimizer_tensors` as a dict of copies on the CPU."""
    return {name: value.cpu().clone() for name, value in optimizer_tensors(lm, optimizer)}


def unpack_optimizer(lm: nn.Module, optimizer: torch.optim.Optimizer, packed: dict[str, torch.Tensor]) -> None:
    """Replace the whole state by that of `pack_optimizer`; raises ValueError as `put_optimizer_tensors` does."""
    optimizer.state.clear()
    put_optimizer_tensors(lm, optimizer, packed)
