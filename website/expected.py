"""Compute how long a training step takes, from published peaks and the usual share of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from algorithms.learner.flops import PEAK_TFLOPS

# Of the peak, in an update; of the memory's bandwidth, while tokens are decoded.
PEAK_USED, BANDWIDTH_USED = 0.4, 0.5


@dataclass(frozen=True)
class Card:
    """A GPU's memory in GiB, and published peaks: bfloat16 FLOP/s without sparsity, bytes per second of its memory."""

    gib: float
    flops: float
    bandwidth: float

    @classmethod
    def of(cls, name: str, gib: float, gigabytes_per_s: float) -> "Card":
        """Return a card that the logged utilization knows by name."""
        return cls(gib, PEAK_TFLOPS[name] * 1e12, gigabytes_per_s * 1e9)


# What nvidia-smi reports of a T4, an A10, an A100 and an H100, in MiB, and `--check` reads. ECC takes its part of it.
SIZES: Mapping[str, int] = MappingProxyType({"16 GB": 15_360, "24 GB": 23_028, "40 GB": 40_960, "80 GB": 81_559})
CARDS: Mapping[str, Card] = MappingProxyType(
    {
        "24 GB (A10)": Card.of("A10", SIZES["24 GB"] / 1024, 600),
        "40 GB (A100)": Card.of("A100", SIZES["40 GB"] / 1024, 1555),
        "80 GB (H100)": Card.of("H100", SIZES["80 GB"] / 1024, 3350),
    }
)


@dataclass(frozen=True)
class Work:
    """A step's work.

    Args:
        parameters: of the model, 2 bytes each in the engine.
        token_cache: bytes of a token's keys and values.
        at_once: responses that are decoded together.
        responses: of the step, all of them `length` tokens long.
        prompt: tokens before each.
        length: tokens of a response.
        trained: tokens that go through the learner.
        passes: multiplications with every weight for each of those, two FLOPs each.
    """

    parameters: int
    token_cache: int
    at_once: int
    responses: int
    prompt: int
    length: int
    trained: int
    passes: int

    def seconds(self, card: Card) -> tuple[float, float]:
        """Return the seconds of decoding and of the update; attention's own FLOPs and all else are left out."""
        read = 2 * self.parameters + self.at_once * self.token_cache * (self.prompt + self.length / 2)
        flops = 2 * self.parameters * self.at_once
        token = max(read / (BANDWIDTH_USED * card.bandwidth), flops / (PEAK_USED * card.flops))
        update = 2 * self.passes * self.parameters * self.trained / (PEAK_USED * card.flops)
        return math.ceil(self.responses / self.at_once) * self.length * token, update
