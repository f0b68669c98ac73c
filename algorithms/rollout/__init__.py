"""Rollouts: engines, episodes, and the workers that run them. Start with types.py, then env_runner.py."""
