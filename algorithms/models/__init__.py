"""Models by name: where they are, how large they are, their tokenizers. Start with names.py."""
