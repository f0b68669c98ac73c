"""Destinations of a run's numbers besides metrics.jsonl: TensorBoard's event files, and those in `run.trackers`."""
