"""Environments of other libraries, each an optional extra, as environments of this package; start at `foreign.py`."""
