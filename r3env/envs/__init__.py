"""The environments of this package: mathematics, reward functions, tools, reasoning-gym, mixtures; start at `math.py`."""
