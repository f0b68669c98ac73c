"""Settings: their types and meanings, and how files and overrides become a configuration. Start with sections.py."""
