"""A supervised start on worked solutions: the library of `python -m algorithms.sft`. Start with session.py."""
