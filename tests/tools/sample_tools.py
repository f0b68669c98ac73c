"""Tools of the tests, as a user would write them."""

import os
import time


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b
