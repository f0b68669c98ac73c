"""The order in which queries are trained on: a new shuffle each epoch, a function of the seed alone."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np


class EpochSampler:
    """An endless stream of queries.

    Epoch `e` is the permutation that `(seed, e)` gives, so that a position in the stream says everything: a resumed
    run needs no state but `position`.

    Args:
        uids: the queries, in the data's order.

    Raises:
        ValueError: there are no queries.
    """

    def __init__(self, uids: Sequence[str], seed: int, position: int = 0) -> None:
        if not uids:
            raise ValueError("environment.data: there are no queries to train on")
        self.uids, self.seed, self.position = list(uids), seed, position

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells other queries, or another order of them in the data, from these."""
        digest = hashlib.blake2b(digest_size=16)
        for uid in self.uids:
            digest.update(uid.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()

    @property
    def epoch(self) -> float:
        """Epochs done, as a fraction."""
        return self.position / len(self.uids)

    def take(self, count: int) -> list[str]:
        """The next `count` queries; a batch may span two epochs."""
        taken: list[str] = []
        while len(taken) < count:
            epoch, offset = divmod(self.position, len(self.uids))
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.uids))
            chosen = order[offset : offset + count - len(taken)]
            taken += [self.uids[i] for i in chosen]
            self.position += len(chosen)
        return taken
