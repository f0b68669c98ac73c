"""Tasks built for R³: bases that fail often, and that were taught to use a failed attempt in the context."""
