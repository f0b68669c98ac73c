"""The nearest correct spelling, for error messages."""

import difflib
from collections.abc import Iterable
from itertools import islice

_MOST_COMPARED = 10_000  # a comparison takes tens of microseconds, and there may be a million uids
_LONGEST = 100  # characters that are compared: the time grows with the square


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return the candidate most similar to `name`, quoted; "(there is none)" without candidates.

    Args:
        name: What was written, of any type (a wrong type still deserves a hint).
        candidates: The names that would have been correct.
    """
    beginnings = {candidate[:_LONGEST]: candidate for candidate in islice(candidates, _MOST_COMPARED)}
    matches = difflib.get_close_matches(str(name)[:_LONGEST], beginnings, n=1, cutoff=0.0)
    return repr(beginnings[matches[0]]) if matches else "(there is none)"
