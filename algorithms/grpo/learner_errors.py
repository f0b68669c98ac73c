"""Errors of the learners, apart from the code that needs Ray."""


class LearnerDied(RuntimeError):
    """A learner is gone; the run goes on from its last checkpoint."""
