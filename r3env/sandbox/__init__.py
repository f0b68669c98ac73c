"""Child processes that can be killed whatever they compute; start at `process.py`."""
