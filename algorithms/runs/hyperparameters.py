"""What TensorBoard's HPARAMS page compares runs by."""

from collections.abc import Mapping
from typing import Any

# The same list for every algorithm: TensorBoard takes the columns of all runs from one of them.
NAMES = (
    "algorithm",
    "run.seed",
    "rl_module.model",
    "rl_module.lora_rank",
    "environment.id",
    "environment.data",
    "env_runners.max_response_tokens",
    "env_runners.temperature",
    "training.lr",
    "training.warmup_steps",
    "training.weight_decay",
    "training.group_size",
    "training.queries_per_step",
    "training.minibatches",
    "training.advantage",
    "training.max_refills",
    "training.objective",
    "training.ratio_level",
    "training.clip_low",
    "training.clip_high",
    "training.dual_clip",
    "training.loss_norm",
    "training.policy_lag",
    "training.beta",
    "training.is_cap",
    "reward.w_len",
    "reward.overlong_penalty",
    "replay.enabled",
    "replay.k",
    "replay.contexts",
    "replay.ratio",
    "replay.std_scale",
    "reflection.enabled",
    "reflection.threshold",
    "reflection.max_share",
    "reflection.distil",
    "ranking.enabled",
    "ranking.max_reward",
    "ranking.scope",
    "ranking.baseline",
    "ranking.std_floor",
)
METRICS = ("eval/pass@1", "reward/mean", "groups/solve_none", "response/truncated", "response/mean_tokens")
_SWITCHES = ("replay.enabled", "reflection.enabled", "ranking.enabled")


def hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The values of `NAMES` in a resolved configuration.

    Args:
        config: section → setting → value, and `algorithm`.

    Returns:
        What is set; a mechanism that the algorithm does not have is switched off.
    """
    values: dict[str, bool | int | float | str] = dict.fromkeys(_SWITCHES, False)
    for name in NAMES:
        section, _, key = name.partition(".")
        value = (config.get(section) or {}).get(key) if key else config.get(section)
        if isinstance(value, bool | int | float | str):
            values[name] = value
    return values
