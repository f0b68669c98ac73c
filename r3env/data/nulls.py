"""Cells that hold nothing, as files and tables write them."""

from typing import Any


def is_null(value: Any) -> bool:
    """Return whether a cell holds nothing: None, or NaN and NaT, which tables have in its place."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # an array
        return False
