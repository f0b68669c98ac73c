"""The recipe of the embedded models, their problems and their report; start at `build.py`."""
