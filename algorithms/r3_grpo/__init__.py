"""R³-GRPO: GRPO with replay, reflection and ranking. Start with algorithm.py."""
