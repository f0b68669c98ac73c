"""Warn when answers get longer instead of better."""

from collections import deque

import numpy as np

# How much the truncated share must have risen to be told, and the correct one fallen.
RISE, FALL = 0.1, 0.02


class TruncationWatch:
    """Compares the last `window` steps with the `window` steps before.

    Args:
        window: steps on each side.
    """

    def __init__(self, window: int = 10) -> None:
        self._window = window
        self._steps: deque[tuple[float, float]] = deque(maxlen=2 * window)

    def observe(self, truncated: float, correct: float) -> str | None:
        """Take one step's shares; returns a warning, at most once in a window, or None."""
        self._steps.append((truncated, correct))
        if len(self._steps) < 2 * self._window:
            return None
        shares = np.array(self._steps)
        before, now = shares[: self._window].mean(axis=0), shares[self._window :].mean(axis=0)
        if not (now[0] - before[0] >= RISE and before[1] - now[1] >= FALL):  # NaN: a step had no response
            return None
        for _ in range(self._window):
            self._steps.popleft()
        return (
            f"truncated answers rose from {before[0]:.0%} to {now[0]:.0%} while correct ones fell from "
            f"{before[1]:.0%} to {now[1]:.0%} over the last {self._window} steps; a larger "
            "env_runners.max_response_tokens gives answers room to end; ranking.baseline=finished_wrong or "
            "ranking.enabled=false stops rewarding truncated answers"
        )
