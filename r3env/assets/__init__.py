"""The embedded tiny model, its problems, and the recipe that makes both; start at `build.py`."""
