"""What was answered to each query before. Start with store.py."""
