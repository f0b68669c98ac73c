"""Held-out evaluation: sampling, metrics, comparison. Start with sampling.py."""
