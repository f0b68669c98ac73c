"""Helpers of every layer: atomic files, statistics, progress, random streams. Independent of training."""
