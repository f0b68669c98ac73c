"""The terms of the loss: one file of pure tensor code each, found by scanning this folder. Start with base.py."""
