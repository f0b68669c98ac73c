"""Where a run's numbers go beside metrics.jsonl: TensorBoard's event files, and what `run.trackers` names."""
