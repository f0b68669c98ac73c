"""Errors of rollouts, apart from the code that needs Ray."""


class EveryEpisodeFailed(RuntimeError):
    """The environment failed in every episode of a step: nothing can be learnt from going on."""
