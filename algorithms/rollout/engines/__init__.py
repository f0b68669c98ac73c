"""Inference engines behind one interface, base.py."""
