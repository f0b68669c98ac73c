"""Further methods of the family, one file each; algorithms/grpo/registry.py finds them here."""
