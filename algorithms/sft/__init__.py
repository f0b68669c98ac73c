"""`python -m algorithms.sft`: a supervised start on worked solutions."""
