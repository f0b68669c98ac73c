"""What every layer uses: whole files, statistics, progress, random streams. Knows nothing of training."""
