"""`python -m algorithms.report`: one HTML page about runs. Start with command.py."""
