"""The nearest correct spelling, for error messages."""

import difflib
from collections.abc import Iterable
from itertools import islice

_MOST_COMPARED = 10_000  # a comparison takes tens of microseconds, and there may be a million uids


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return the candidate most similar to `name`, quoted; "(there is none)" without candidates.

    Args:
        name: What was written, of any type (a wrong type still deserves a hint).
        candidates: The names that would have been correct.
    """
    matches = difflib.get_close_matches(str(name), list(islice(candidates, _MOST_COMPARED)), n=1, cutoff=0.0)
    return repr(matches[0]) if matches else "(there is none)"
