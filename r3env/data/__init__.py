"""Queries from files, presets and the Hub, on disk and shared; start at `loading.py`."""
