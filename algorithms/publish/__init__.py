"""Upload an exported model to the Hugging Face Hub, with a model card on its training. Start with hub.py."""
