"""The name by which a row takes part in a term of the loss. Imports no torch: mechanisms name terms."""

from dataclasses import dataclass
from typing import Any

from algorithms.config.errors import ConfigError, shown


@dataclass(frozen=True)
class Term:
    """A term of the loss with its settings; terms that are equal are computed together.

    Args:
        name: a file's in `algorithms.losses`, the "module:Class" of a `LossTerm`, or `policy`: `training.objective`.
        options: values of its own settings; of `policy`, `clip_low`, `clip_high`, `ratio_level` and `dual_clip`.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()


def term(name: str, **options: Any) -> Term:
    """Name a term, with its settings.

    Raises:
        ConfigError: one is a list, or something else that is not hashable: equal terms could not be found.
    """
    for key, value in options.items():
        try:
            hash(value)
        except TypeError as error:
            raise ConfigError(
                f"loss term {name}: {key}: {shown(value)} has an {error}; fix: a number, text or tuple"
            ) from None
    return Term(name, tuple(sorted(options.items())))


POLICY, DIRECT = term("policy"), term("direct")
