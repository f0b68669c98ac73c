"""Precise instructions about a short text: kinds of constraint, texts that meet them, and generated prompts."""
