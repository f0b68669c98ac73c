"""`python -m algorithms.report`: one HTML page about runs. Start with __main__.py."""
