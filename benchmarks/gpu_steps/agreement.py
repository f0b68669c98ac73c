"""How far an engine's log-probs are from the learner's, on the same responses."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Rounding in bfloat16 is far below it; weights of another version are far above.
MOST_MEAN_GAP = 0.05


@dataclass(frozen=True)
class Agreement:
    """|log-prob(engine) - log-prob(learner)| over all sampled tokens.

    Args:
        tokens: compared.
        mean: of the absolute differences.
        largest: of them.
        k3: mean of exp(d) - 1 - d, where d is learner minus engine: an estimate of the KL divergence.
    """

    tokens: int
    mean: float
    largest: float
    k3: float

    @property
    def wrong(self) -> list[str]:
        """The violated expectations, in words."""
        return [] if self.mean <= MOST_MEAN_GAP else [f"log-probs differ by {self.mean:.3g} on average"]

    def __str__(self) -> str:
        return f"log-prob gap mean {self.mean:.2g}, max {self.largest:.2g}"

    @property
    def figures(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


def requests(count: int, max_tokens: int, vocabulary: int = 100, first_seed: int = 0) -> list[Any]:
    """Return generation requests: prompts of 8 to 40 random tokens, each sampled under four seeds."""
    from algorithms.rollout.engines.base import GenerationRequest
    from algorithms.rollout.types import Sampling

    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, vocabulary, rng.integers(8, 41)).astype(np.int32) for _ in range(-(-count // 4))]
    sampling = Sampling(1.0, 1.0, max_tokens)
    return [GenerationRequest(prompts[index // 4], first_seed + index, sampling) for index in range(count)]


def rows_of(asked: Sequence[Any], completions: Sequence[Any]) -> list[Any]:
    """Return completions as rows of the learner."""
    from algorithms.learner.batch import TrainingSample

    rows = []
    for request, completion in zip(asked, completions, strict=True):
        tokens = np.concatenate([request.tokens, completion.tokens]).astype(np.int32)
        mask = np.arange(len(tokens)) >= len(request.tokens)
        rows.append(TrainingSample(tokens, mask, sampling_logprobs=completion.logprobs))
    return rows


def compare(rows: Sequence[Any], scored: Sequence[np.ndarray]) -> Agreement:
    """Compare the rows' own log-probs with the learner's, float [L] of each row."""
    engine = np.concatenate([row.sampling_logprobs for row in rows]).astype(np.float64)
    gaps = np.concatenate(list(scored)).astype(np.float64) - engine
    k3 = float((np.exp(gaps) - 1 - gaps).mean())
    return Agreement(len(gaps), float(np.abs(gaps).mean()), float(np.abs(gaps).max()), k3)
