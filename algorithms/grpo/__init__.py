"""GRPO: one training step as a list of stages. Start with algorithm.py."""
