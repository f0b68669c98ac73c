"""Earlier responses to each query. Start with store.py."""
