"""Models by name: where they lie, how large they are, their tokenizers. Start with names.py."""
