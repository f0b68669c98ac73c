"""A fair test of each mechanism: bases that fail often, tasks where a failed attempt in the context helps."""
