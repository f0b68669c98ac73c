"""Tasks to copy from, each started by `python -m algorithms.r3_grpo environment.id=examples.NAME:Id-v0 …`."""
