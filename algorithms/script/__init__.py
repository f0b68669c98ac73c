"""The training script: its command line, its loop, its checkpoints."""
