"""Parts of `benchmarks.soak`."""
