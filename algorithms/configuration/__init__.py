"""Settings: their types, ranges and meanings, the files that hold them, and what can be known before a run starts."""
