"""Helpers of methods that compare two models' views of a response: gaps of log-probs as values per token."""

from collections.abc import Sequence

import numpy as np

from algorithms.grpo.mechanism import Sample


def per_token(advantages: "np.ndarray | Sequence[np.ndarray]", samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return the values of an estimator or another mechanism as float32 [L] for each sample."""
    lengths = (sample.rollout.response_length for sample in samples)
    return [
        np.broadcast_to(np.asarray(value, np.float32), length)
        for value, length in zip(advantages, lengths, strict=True)
    ]


def bounded(gap: np.ndarray, cap: float | None) -> np.ndarray:
    """Return a gap, float32 [L], with no value farther from 0 than the cap; None: as it is."""
    return gap if cap is None else np.clip(gap, -cap, cap)


def gap_metrics(section: str, gaps: Sequence[np.ndarray], cap: float | None) -> dict[str, float]:
    """Return the mean gap, its mean size and the share of tokens beyond the cap, over all tokens; 0 without any."""
    values = np.concatenate([*gaps, np.zeros(0, np.float32)]).astype(np.float64)
    sizes = np.abs(values)
    beyond = sizes > (np.inf if cap is None else cap)
    means = (values, sizes, beyond) if len(values) else (np.zeros(1),) * 3
    return {
        f"{section}/{name}": float(each.mean()) for name, each in zip(("gap", "gap_size", "capped"), means, strict=True)
    }
