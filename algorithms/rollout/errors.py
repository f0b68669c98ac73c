"""Errors of rollouts, apart from the code that needs Ray."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from algorithms.rollout.types import Rollout


class EveryEpisodeFailed(RuntimeError):
    """The environment failed in every episode of a step: nothing can be learnt from going on."""


def refuse_if_all_failed(rollouts: "Sequence[Rollout]") -> None:
    """Raise if the environment failed in every one of some rollouts.

    Raises:
        EveryEpisodeFailed: with what the first says.
    """
    if rollouts and all(rollout.verdict == "environment_error" for rollout in rollouts):
        raise EveryEpisodeFailed(
            f"environment.id: every one of {len(rollouts)} episodes failed; the first: {rollouts[0].error}"
        )
