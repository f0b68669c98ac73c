"""The environments of this package: mathematics, rewards, tools, reasoning-gym, mixtures; start at `math.py`."""
