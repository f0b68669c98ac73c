"""What the property tests of the maths draw from."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from algorithms.history.store import ReplayEntry
from algorithms.rollout.types import Context

# The same examples on every run: a test that fails fails for everyone.
repeatable = settings(deadline=None, derandomize=True, max_examples=60)

seeds = st.integers(0, 2**32 - 1)
group_rewards = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-2.0, 2.0, width=32))

# Quarters collide often, so that ties of every kind turn up.
token_entropies = hnp.arrays(np.float32, st.integers(0, 20), elements=st.integers(0, 12).map(lambda n: n / 4))
group_entropies = st.lists(token_entropies, min_size=1, max_size=8)


def entry(
    uid: str = "q",
    response: tuple[int, ...] = (7, 8, 9),
    *,
    correct: bool = False,
    truncated: bool = False,
    context: Context = Context.PLAIN,
    prompt: tuple[int, ...] = (1, 2),
    step: int = 1,
    text: str = "",
) -> ReplayEntry:
    """Build a stored response whose log-probs tell its step."""
    mask = np.array([False] * len(prompt) + [True] * len(response), dtype=bool)
    return ReplayEntry(
        uid=uid,
        context=context,
        tokens=np.array(prompt + response, dtype=np.int32),
        loss_mask=mask,
        old_logprobs=np.full(len(response), -float(step), np.float32),
        reward=float(correct),
        correct=correct,
        truncated=truncated,
        step=step,
        text=text,
    )
