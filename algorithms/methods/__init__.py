"""Further methods of the family, one file each; a line in algorithms/grpo/registry.py names them."""
