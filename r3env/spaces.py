"""Text spaces that hold any Unicode."""

import sys
from typing import Any

import numpy as np
from gymnasium.spaces import Text

_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF
_SURROGATES = _LAST_SURROGATE - _FIRST_SURROGATE + 1


class UnicodeText(Text):
    """The space of all strings, of any length and in any script.

    Gymnasium's `Text` holds only strings over a character set that has to be listed, and a policy writes what
    it likes. It is still a `Text`, because RLlib serializes the space types that it knows by `isinstance`.
    """

    def __init__(self, *, sample_length: int = 32, seed: int | np.random.Generator | None = None) -> None:
        """Make the space.

        Args:
            sample_length: Longest sample, in characters. Membership has no such limit.
            seed: Seed or generator of the samples.

        Raises:
            ValueError: `sample_length` is negative.
        """
        if sample_length < 0:
            raise ValueError(f"sample_length must not be negative, it is {sample_length}")
        super().__init__(max_length=sys.maxsize, min_length=0, seed=seed)
        self.sample_length = sample_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Sample a string of 0 to `sample_length` characters, each from all of Unicode but the surrogates.

        Raises:
            ValueError: A mask or a probability is given: there is no list of characters for it to index.
        """
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText samples without mask or probability")
        length = int(self.np_random.integers(self.sample_length + 1))
        # Surrogates are legal in a Python str but in no encoding, so a sample could not be written to a file.
        codes = self.np_random.integers(sys.maxunicode + 1 - _SURROGATES, size=length)
        codes = np.where(codes < _FIRST_SURROGATE, codes, codes + _SURROGATES)
        return "".join(map(chr, codes.tolist()))

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: no array of fixed size holds every string."""
        return False

    def __repr__(self) -> str:
        """Return the constructor call of this space."""
        return f"UnicodeText(sample_length={self.sample_length})"

    def __eq__(self, other: Any) -> bool:
        """Spaces that hold the same strings and sample alike are equal."""
        return isinstance(other, UnicodeText) and self.sample_length == other.sample_length

    __hash__ = None  # type: ignore[assignment]  # as every Gymnasium space: compared by value, seeded in place
