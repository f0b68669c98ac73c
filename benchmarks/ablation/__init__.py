"""Several methods on one task, several seeds each, compared at equal steps and at equal generated tokens."""
