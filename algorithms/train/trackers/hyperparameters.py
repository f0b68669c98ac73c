"""The columns and the row of TensorBoard's HPARAMS page."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from algorithms.config.schema import Sections
from algorithms.config.schema import hyperparameters as marked_hyperparameters
from algorithms.config.sections import RunSettings
from algorithms.grpo.registry import all_sections

HYPERPARAMETER_METRICS = (
    "eval/pass@1",
    "reward/mean",
    "groups/solve_none",
    "response/truncated",
    "response/mean_tokens",
)


def hyperparameter_names(sections: Sections = MappingProxyType({})) -> list[str]:
    """Return the columns of TensorBoard's HPARAMS page: `algorithm`, and the settings marked with `hparam`.

    They are the same for every algorithm: TensorBoard takes the columns of all runs from one of them.

    Args:
        sections: further ones, such as a user's mechanism's.
    """
    return ["algorithm", *marked_hyperparameters({"run": RunSettings, **all_sections(), **sections})]


def hyperparameters(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Return the values of `names` in a resolved configuration.

    Args:
        config: section → setting → value, and `algorithm`.
        names: see `hyperparameter_names`.

    Returns:
        What is set; a mechanism that the algorithm does not have is switched off.
    """
    values: dict[str, bool | int | float | str] = {name: False for name in names if name.endswith(".enabled")}
    for name in names:
        section, _, key = name.partition(".")
        value = (config.get(section) or {}).get(key) if key else config.get(section)
        if isinstance(value, bool | int | float | str):
            values[name] = value
    return values
