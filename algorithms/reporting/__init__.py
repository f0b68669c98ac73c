"""Write runs as one HTML page: the library of `python -m algorithms.report`. Start with page.py."""
