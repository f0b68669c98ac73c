"""How the learners' weights get into the engines: `choose_transfer(config)` gives the way."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig
    from algorithms.rollout.transfer.base import WeightTransfer

__all__ = ["choose_transfer"]


def choose_transfer(config: "GRPOConfig") -> "WeightTransfer":
    """The way that the configuration asks for, or the best for where learners and engines live.

    Raises:
        ConfigError: `env_runners.weight_transfer` cannot work where they live.
    """
    # Imported here: engines need this package's plain parts, without Ray.
    from algorithms.rollout.transfer.choice import choose

    return choose(config)
