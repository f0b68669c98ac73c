"""Held-out evaluation, in training and by `python -m algorithms.evaluate`.

Start with sampling.py, then benchmarks.py.
"""
