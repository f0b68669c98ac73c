"""The steps of `python -m benchmarks.first_gpu`. Start with catalog.py, the list of them."""
