"""Weights from the learners to the engines. Start with choice.py, which picks the transfer, then transfer.py."""
