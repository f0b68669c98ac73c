"""Measurements: each script prints what it measured, with a ratio to a baseline taken in the same run."""
