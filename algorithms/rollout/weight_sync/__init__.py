"""How the learners' weights get into the engines. Start with choice.py."""
