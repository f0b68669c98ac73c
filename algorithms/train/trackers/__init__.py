"""Where a run's numbers go beside metrics.jsonl: TensorBoard's event files, and the trackers that `run.trackers` names."""
