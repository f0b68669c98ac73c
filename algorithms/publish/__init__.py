"""An exported model on the Hugging Face Hub, with a card that says how it was trained. Start with hub.py."""
