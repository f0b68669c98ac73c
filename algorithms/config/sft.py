"""The settings of a supervised start, `python -m algorithms.sft`."""

from algorithms.config.schema import Settings, setting


class SFTSettings(Settings):
    """A supervised start (`python -m algorithms.sft`): the training data's worked solutions, imitated."""

    solution: str | None = setting(
        None,
        "Column of `environment.data` with worked solutions; null: the one of its preset, or `solution`. One without "
        "a final answer gets the reference answer as its last line; one that the environment grades as incorrect is "
        "left out.",
    )
    epochs: float = setting(1.0, "Passes over the rows.", hparam=True, gt=0)
    steps: int | None = setting(None, "Optimizer steps, in place of `epochs`; null: what `epochs` gives.", ge=1)
    rows: int | None = setting(None, "Maximum number of rows to train on, evenly spaced in the data; null: all.", ge=1)
    max_tokens: int | None = setting(
        None,
        "Longer solutions, end token included, are left out; null: `env_runners.max_response_tokens`, beyond which a "
        "rollout is truncated.",
        ge=1,
    )
    batch_size: int = setting(16, "Rows per optimizer step.", hparam=True, ge=1)
    micro_batch_size: int = setting(
        4, "Rows computed at a time, to save memory; must divide `batch_size` unless it is larger.", ge=1
    )
    lr: float = setting(2e-5, "Learning rate of AdamW; it falls linearly to 0.", hparam=True, gt=0)
    warmup_steps: int = setting(
        0, "Optimizer steps over which the learning rate rises linearly from 0.", hparam=True, ge=0
    )
    held_out: int = setting(
        64,
        "Rows set aside, evenly spaced and at most a tenth, whose loss is measured before and after, and every "
        "`evaluation.interval` steps; 0: none.",
        ge=0,
    )
