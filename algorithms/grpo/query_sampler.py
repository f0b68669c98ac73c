"""Choose the queries of a step: by a new shuffle each epoch, or by another sampler."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from algorithms.grpo.mechanism import Mechanism, Services
from algorithms.grpo.plugin_checks import checked_queries


class QuerySampler(Mechanism):
    """Chooses queries; one a run, named by `training.query_sampler`. It may have any hook of a mechanism.

    Attributes:
        drawn: queries that were drawn so far; a checkpoint keeps it.
        taken: what each step that is under way has taken so far; a checkpoint keeps it, but for what a step that is
            made again takes again.
    """

    named_in = "training.query_sampler={}"
    needed = ("choose",)
    drawn: int = 0

    def __init__(self, settings: Any, services: Services) -> None:
        super().__init__(settings, services)
        self.taken: dict[int, list[str]] = {}

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.services.uids)

    def take(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Return the next `count` queries.

        Args:
            count: how many.
            step: the one that trains on them.
            occasion: 0 for the step's own queries, then the number of the round that resamples.

        Raises:
            PluginError: `choose` returned something else.
        """
        if occasion == 0:
            self.taken[step] = []
        chosen = checked_queries(self, self.choose(count, step, occasion), count, self._known)
        self.taken.setdefault(step, []).extend(chosen)
        self.drawn += len(chosen)
        return chosen

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Choose `count` queries; arguments as of `take`. A function of state, `drawn`, `taken` and arguments."""
        raise NotImplementedError


class EpochSampler(QuerySampler):
    """An endless stream of queries.

    Epoch `e` is the permutation that `(seed, e)` gives, so that the number of queries drawn says everything: a resumed
    run needs no other state.

    Raises:
        ValueError: there are no queries.
    """

    name = "epoch"

    def __init__(self, settings: Any, services: Services) -> None:
        super().__init__(settings, services)
        if not services.uids:
            raise ValueError("environment.data: there are no queries to train on")
        self.uids, self.seed = list(services.uids), services.seed

    def choose(self, count: int, step: int, occasion: int = 0) -> list[str]:
        """Return the next `count` queries; a batch may span two epochs."""
        return list(itertools.islice(self.stream(self.drawn), count))

    def choose_where(self, count: int, keep: Callable[[str], bool]) -> list[str]:
        """Return the next `count` queries that `keep` is true of; `drawn` counts those that it is not, too."""
        chosen: list[str] = []
        passed = 0
        for uid in self.stream(self.drawn):
            if len(chosen) == count:
                break
            passed += 1
            if keep(uid):
                chosen.append(uid)
        self.drawn += passed - count
        return chosen

    def stream(self, position: int) -> Iterator[str]:
        """Yield the queries from a position of the stream on, without end."""
        epoch, offset = divmod(position, len(self.uids))
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.uids))
            yield from (self.uids[index] for index in order[offset:])
            epoch, offset = epoch + 1, 0


def fingerprint(uids: Sequence[str]) -> str:
    """Digest the queries: other ones, or another order of them in the data, give another text."""
    digest = hashlib.blake2b(digest_size=16)
    for uid in uids:
        digest.update(uid.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()
