"""`python -m algorithms.evaluate`: a thin command line over algorithms.evaluation. Start with command.py."""
