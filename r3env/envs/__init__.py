"""The environments of this package: mathematics, reasoning-gym, mixtures; start at `math.py`."""
