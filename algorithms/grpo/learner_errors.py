"""Errors of the learners, apart from the code that needs Ray."""


class LearnerDied(RuntimeError):
    """A learner is gone; the run goes on from its last checkpoint."""


class LearnerOutOfMemory(LearnerDied):
    """A learner's device is too small for what it was given; with less at a time the run goes on."""
