"""Checks before anything starts: by --check, and by build_algo(). Start with check.py."""
