"""Inference engines behind one interface. Home: base.py."""
