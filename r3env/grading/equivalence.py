"""Mathematical equality of two answers; may take for ever, so it runs in a process that can be killed."""

from functools import cache
from typing import Any

from r3env.grading.normalisation import plain_spelling, quick_equal


def equivalent(gold: str, answer: str) -> bool:
    """Whether `answer` equals `gold`: plainly, or by math-verify with the gold as its first argument.

    The order of elements and the difference between sets and tuples count as math-verify lets them count. An
    answer that it cannot read equals only its own spelling.

    Args:
        gold: The reference answer, without its box.
        answer: The answer to judge, without its box.
    """
    plainly = quick_equal(gold, answer)
    if plainly is not None:
        return plainly
    # Its own timeouts are signal alarms, which fire too late inside one long operation on integers.
    return bool(_math_verify().verify(_parsed(gold), _parsed(answer), timeout_seconds=None))


def _parsed(answer: str) -> list[Any]:
    # Both sides are known to be an answer and nothing else. With math-verify's looser patterns it would go on
    # to pick any number out of a text that it cannot read.
    library = _math_verify()
    only_the_box = library.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    return list(library.parse(f"\\boxed{{{plain_spelling(answer)}}}", [only_the_box], parsing_timeout=None))


@cache
def _math_verify() -> Any:
    # Imported on first use: the parent process takes only the cheap comparison from this package.
    import logging

    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    return math_verify
