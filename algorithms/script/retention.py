"""Which checkpoints a run keeps."""

import math
from collections.abc import Mapping


def superfluous(metrics: Mapping[int, Mapping[str, float]], *, keep: int, best_by: str | None) -> list[int]:
    """The steps whose checkpoints may go: all but the last ones and the best one.

    Args:
        metrics: of each checkpoint's step, what was measured at it.
        keep: how many of the newest stay; 0: all.
        best_by: the metric whose highest value stays as well, the earliest where several have it; None: no such.
            Checkpoints without it, or where it is not finite, cannot be the best.

    Returns:
        Steps, ascending.
    """
    steps = sorted(metrics)
    if keep == 0:
        return []
    kept = set(steps[-keep:])
    values = {step: metrics[step].get(best_by, math.nan) for step in steps} if best_by is not None else {}
    rated = {step: value for step, value in values.items() if math.isfinite(value)}
    if rated:
        kept.add(max(rated, key=lambda step: (rated[step], -step)))
    return [step for step in steps if step not in kept]
