"""The checkpointed state of the mechanisms and the history: arrays and plain data, each under its section."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.config.base import BaseConfig
from algorithms.grpo.mechanism import Mechanism, State
from algorithms.grpo.plugin_checks import checked_state
from algorithms.history.store import ReplayHistory
from algorithms.utils.files import plain

HISTORY = "history"


def open_history(config: BaseConfig, path: Path | None) -> ReplayHistory:
    """Open the history of a configuration, section `history`; in memory without a path."""
    settings, group_size = config.history_settings, config.training_settings.group_size
    return ReplayHistory(
        capacity=settings.capacity,
        dedupe=settings.dedupe,
        history_window=4 * group_size if settings.window is None else settings.window,
        path=path,
    )


def pack_states(mechanisms: Sequence[Mechanism], history: ReplayHistory | None) -> State:
    """Return arrays named `section.name`, and plain data by section.

    Raises:
        PluginError: a mechanism's state fits no checkpoint.
    """
    found = {each.section: checked_state(each, each.state()) for each in mechanisms if each.section}
    if history is not None:
        arrays, data = history.save()
        found[HISTORY] = arrays, plain(data)
    arrays = {f"{section}.{name}": array for section, (own, _) in found.items() for name, array in own.items()}
    return arrays, {section: data for section, (_, data) in found.items()}


def restore_states(
    mechanisms: Sequence[Mechanism],
    history: ReplayHistory | None,
    arrays: Mapping[str, np.ndarray],
    states: Mapping[str, Any],
    *,
    same_queries: bool = True,
) -> None:
    """Restore the result of `pack_states`; a mechanism that the checkpoint does not know starts without state.

    Args:
        mechanisms: the enabled ones.
        history: if one is open.
        arrays: by `section.name`.
        states: plain data by section.
        same_queries: whether the data has the checkpoint's queries in the same order.

    Raises:
        ValueError: the history does not hold what the checkpoint was made with.
    """
    for mechanism in mechanisms:
        if mechanism.section:
            own = _own(arrays, mechanism.section)
            kept = {name: array for name, array in own.items() if same_queries or name not in mechanism.by_query}
            mechanism.restore(kept, states.get(mechanism.section, {}))
    if history is not None and HISTORY in states:
        history.restore(_own(arrays, HISTORY), states[HISTORY])
    elif history is not None:
        history.rollback(0)


def history_savepoint(states: Mapping[str, Any]) -> int:
    """Return where a history in a file stood; 0 for one in memory."""
    return int(states.get(HISTORY, {}).get("savepoint", 0))


def _own(arrays: Mapping[str, np.ndarray], section: str) -> dict[str, np.ndarray]:
    prefix = f"{section}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
