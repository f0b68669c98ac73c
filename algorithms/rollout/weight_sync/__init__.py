"""Weights from the learners to the engines. Home: choice.py, which picks the way; transfer.py is its interface."""
