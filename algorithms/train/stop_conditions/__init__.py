"""The conditions of `run.stop`: one file each, found by scanning this folder. Start with base.py."""
