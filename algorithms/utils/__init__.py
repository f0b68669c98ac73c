"""What every layer uses: whole files, statistics, progress, random continuous_batching. Knows nothing of training."""
