"""The learning rate of an optimizer step, a function of its number alone: a resumed run has the same."""

import math

from algorithms.config.sections import TrainingSettings


def learning_rate(number: int, training: TrainingSettings, steps: int | None) -> float:
    """Return the learning rate: a linear warm-up, then `training.lr_schedule`.

    Of T optimizer steps, W of them warm-up, step n > W is at `p = min(1, (n - 1 - W) / (T - W))` of the schedule, and
    its rate is `lr · (s + (1 - s) · f(p))`, with `f(p) = 1 - p` (linear) or `(1 + cos(π·p)) / 2` (cosine). The last
    step is thus one before the floor `s · lr`; steps after the schedule's end stay on the floor.

    Args:
        number: of the optimizer step, from 1.
        training: section `training`; s is its `lr_min_share`.
        steps: training steps of the schedule; `constant` needs none.

    Source: `get_scheduler` of transformers, whose warm-up is one step behind: its first step has rate 0.
    """
    rate = training.lr * min(1.0, number / max(1, training.warmup_steps))
    if training.lr_schedule == "constant" or steps is None:
        return rate
    total = steps * training.passes * training.minibatches
    progress = (number - 1 - training.warmup_steps) / max(1, total - training.warmup_steps)
    progress = min(1.0, max(0.0, progress))
    left = 1.0 - progress if training.lr_schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return rate * (training.lr_min_share + (1.0 - training.lr_min_share) * left)
