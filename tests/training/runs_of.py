"""What a run did, read from the algorithm."""

from typing import Any

import torch

from tests.own_learners import policy_state


def weights(algorithm: Any) -> dict[str, torch.Tensor]:
    """The policy's weights, copied."""
    return policy_state(algorithm.learner_group)[1]["default_policy"]


def train(algorithm: Any, steps: int) -> list[dict[str, Any]]:
    """Train and return each step's record without wall times."""
    records = []
    for _ in range(steps):
        algorithm.train()
        records.append({k: v for k, v in algorithm.batch.record.items() if not k.startswith(("time/", "throughput/"))})
    return records


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Euclidean, over all weights."""
    return float(sum((first[name] - second[name]).square().sum() for name in first) ** 0.5)


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Over all weights."""
    return max(float((first[name] - second[name]).abs().max()) for name in first)
