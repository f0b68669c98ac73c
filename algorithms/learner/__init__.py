"""The learners: from samples to an optimizer step. Start with learner.py."""
