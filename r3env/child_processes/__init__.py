"""Child processes that can be killed whatever they compute; start with `process.py`."""
