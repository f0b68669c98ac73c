"""The name by which a row takes part in a term of the loss. Imports no torch: mechanisms name terms."""

from dataclasses import dataclass
from typing import Any


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
    """Name a term, with its settings."""
    return Term(name, tuple(sorted(options.items())))


POLICY, DIRECT = term("policy"), term("direct")
