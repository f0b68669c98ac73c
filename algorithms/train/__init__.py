"""The training command: its loop, its run directory, its checkpoints. Start with main.py."""
