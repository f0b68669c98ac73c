"""CCR's memory: what was answered to each query before, right and wrong apart."""

import hashlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from algorithms.rollout.types import Context

Contexts = Literal["same", "any"]
Statistic = Literal["correct", "reward"]

STATE_FORMAT = 1
_ENTRY_SEQUENCES = {"tokens": np.int32, "loss_mask": np.bool_, "behaviour_logprobs": np.float32}
_ENTRY_SCALARS = {"reward": np.float64, "correct": np.bool_, "truncated": np.bool_, "step": np.int64}
_ENTRY_STRINGS = ("context", "text")
_QUERY_SCALARS = {"attempts": np.int64, "correct": np.int64, "reward": np.float64}


@dataclass(frozen=True, eq=False)
class Entry:
    """One remembered response, with all that is needed to train on it again.

    Compared by identity. Arrays are brought to the dtypes below.

    Args:
        uid: the query.
        context: what the response was conditioned on.
        tokens: int32 [T], its own full prompt (a quoted attempt included) and all turns.
        loss_mask: bool [T], True on tokens that the policy wrote.
        behaviour_logprobs: float32 [T], the trainer's when the response was sampled; 0 off the mask.
        reward: the outcome reward, never a ranking reward.
        correct: verified.
        truncated: hit the length limit.
        step: training step that sampled it.
        text: the response, for the environment and for people.

    Raises:
        ValueError: the arrays are not 1-D and of one length, or a log-prob or the reward is not finite.
    """

    uid: str
    context: Context
    tokens: np.ndarray
    loss_mask: np.ndarray
    behaviour_logprobs: np.ndarray
    reward: float
    correct: bool
    truncated: bool
    step: int
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", Context(self.context))
        for name, dtype in _ENTRY_SEQUENCES.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        shapes = [self.tokens.shape, self.loss_mask.shape, self.behaviour_logprobs.shape]
        if self.tokens.ndim != 1 or len(set(shapes)) != 1:
            raise ValueError(f"tokens, loss_mask and behaviour_logprobs must be 1-D and alike, got {shapes}")
        if not (np.isfinite(self.behaviour_logprobs).all() and math.isfinite(self.reward)):
            raise ValueError(f"an entry of query {self.uid!r} has a log-prob or a reward that is not finite")

    @property
    def response_tokens(self) -> np.ndarray:
        """int32 [L], the policy's tokens over all turns."""
        return np.asarray(self.tokens[self.loss_mask])

    @property
    def prompt_length(self) -> int:
        """Tokens before the policy's first one."""
        return int(self.loss_mask.argmax()) if self.loss_mask.any() else len(self.tokens)


# By response digest where duplicates are dropped, by a serial number where they are kept; in order of age.
_Pool = dict[bytes | int, Entry]


@dataclass
class _Query:
    """What is known of one query: its pools, all-time totals and the last outcomes (correct, reward)."""

    recent: deque[tuple[float, float]]
    positives: _Pool = field(default_factory=dict)
    negatives: _Pool = field(default_factory=dict)
    attempts: int = 0
    correct: int = 0
    reward: float = 0.0


class ReplayHistory:
    """Responses and outcome statistics by query.

    Each query has two first-in-first-out pools, so that no flood of failures evicts a success. With `dedupe`,
    a response that repeats the context and the response tokens of a stored one takes its place, age included:
    its log-probs are fresher, and repetition does not make it outlive rarer responses.

    Args:
        capacity: entries of each pool; None: unbounded.
        dedupe: whether repeated responses share one entry.
        history_window: how many of a query's last plain attempts count for its mean; 0: all.

    Raises:
        ValueError: `capacity` is below 1, or `history_window` is negative.
    """

    def __init__(self, *, capacity: int | None = 8, dedupe: bool = True, history_window: int = 0) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1, or None for no bound, got {capacity}")
        if history_window < 0:
            raise ValueError(f"history_window must not be negative, got {history_window}")
        self.capacity = capacity
        self.dedupe = dedupe
        self.history_window = history_window
        self._queries: dict[str, _Query] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Count the stored entries."""
        return sum(len(query.positives) + len(query.negatives) for query in self._queries.values())

    def add(self, entry: Entry) -> None:
        """Store a response; a full pool loses its oldest. Counts for no statistic: see `record`."""
        query = self._query(entry.uid)
        pool = query.positives if entry.correct else query.negatives
        if self.dedupe:
            digest = hashlib.blake2b(entry.response_tokens.tobytes(), digest_size=16).digest()
            pool[entry.context.encode() + b":" + digest] = entry
        else:
            pool[self._serial] = entry
            self._serial += 1
        if self.capacity is not None and len(pool) > self.capacity:
            del pool[next(iter(pool))]

    def record(self, uid: str, correct: bool, reward: float) -> None:
        """Count the outcome of one plain attempt, stored or not.

        Raises:
            ValueError: `reward` is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"the reward of an attempt at query {uid!r} is {reward}")
        query = self._query(uid)
        query.attempts += 1
        query.correct += int(correct)
        query.reward += float(reward)
        query.recent.append((float(correct), float(reward)))

    def attempts(self, uid: str) -> int:
        """Count the plain attempts at a query so far, those outside the window included."""
        query = self._queries.get(uid)
        return query.attempts if query else 0

    def mean(self, uid: str, statistic: Statistic) -> float | None:
        """Average the outcomes of a query's plain attempts, over the window; None without any.

        Raises:
            ValueError: `statistic` is neither `correct` nor `reward`.
        """
        if statistic not in ("correct", "reward"):
            raise ValueError(f"statistic must be correct or reward, got {statistic!r}")
        query = self._queries.get(uid)
        if query is None or query.attempts == 0:
            return None
        if self.history_window == 0:
            return (query.correct if statistic == "correct" else query.reward) / query.attempts
        values = [outcome[0 if statistic == "correct" else 1] for outcome in query.recent]
        return math.fsum(values) / len(values) if values else None

    def opposites(
        self, uid: str, *, correct_group: bool, k: int, contexts: Contexts, context: str, rng: Generator
    ) -> list[Entry]:
        """Draw what a homogeneous group lacks: successes for an all-wrong one, failures for an all-right one.

        Uniformly at random without replacement; of failures, truncated ones only where finished ones run out.

        Args:
            uid: the query.
            correct_group: whether the group is all right.
            k: the most entries to draw; fewer, down to none, come where the pool has no more.
            contexts: `same`: only entries of the group's own context; `any`: every entry of the query.
            context: the group's context.
            rng: the only source of chance.

        Raises:
            ValueError: `contexts` is neither `same` nor `any`.
        """
        if contexts not in ("same", "any"):
            raise ValueError(f"contexts must be same or any, got {contexts!r}")
        query = self._queries.get(uid)
        if query is None:
            return []
        pool = query.negatives if correct_group else query.positives
        eligible = [entry for entry in pool.values() if contexts == "any" or entry.context == context]
        if not correct_group:
            return _draw(eligible, k, rng)
        drawn = _draw([entry for entry in eligible if not entry.truncated], k, rng)
        return drawn + _draw([entry for entry in eligible if entry.truncated], k - len(drawn), rng)

    def failure(self, uid: str, rng: Generator) -> Entry | None:
        """Draw one stored plain failure uniformly, for a reflection prompt to quote; None without any."""
        query = self._queries.get(uid)
        failures = query.negatives.values() if query else ()
        plain = [entry for entry in failures if entry.context == Context.PLAIN]
        return next(iter(_draw(plain, 1, rng)), None)

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Export everything as flat arrays, for `np.savez` or safetensors (no pickle), and metadata for JSON.

        Strings are UTF-8 bytes and rows of unlike length are concatenated; `*_offsets` say where each ends.
        """
        queries = list(self._queries.values())
        pools = [[*query.positives.values(), *query.negatives.values()] for query in queries]
        entries = [entry for pool in pools for entry in pool]
        outcomes = [outcome for query in queries for outcome in query.recent]
        arrays = {
            **_encoded("query_uid", list(self._queries)),
            **_columns("query", queries, _QUERY_SCALARS),
            "recent_offsets": _offsets([len(query.recent) for query in queries]),
            "recent": np.array(outcomes, dtype=np.float64).reshape(-1, 2),
            "entry_query": np.repeat(np.arange(len(queries)), [len(pool) for pool in pools]),
            "entry_offsets": _offsets([len(entry.tokens) for entry in entries]),
            **_columns("entry", entries, _ENTRY_SCALARS),
        }
        for name, dtype in _ENTRY_SEQUENCES.items():
            rows = [getattr(entry, name) for entry in entries]
            arrays[f"entry_{name}"] = np.concatenate([np.empty(0, dtype=dtype), *rows])
        for name in _ENTRY_STRINGS:
            arrays |= _encoded(f"entry_{name}", [getattr(entry, name) for entry in entries])
        return arrays, {"format": STATE_FORMAT}

    def load_state_dict(self, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        """Replace everything by what `state_dict` exported: later draws are the ones that it would have made.

        Settings stay this object's own. Where they differ from the saved ones, pools and windows shrink to
        them, and a window longer than the saved one fills up again.

        Raises:
            ValueError: the state is of another format.
        """
        if metadata.get("format") != STATE_FORMAT:
            raise ValueError(f"expected replay state of format {STATE_FORMAT}, got {metadata.get('format')}")
        self._queries, self._serial = {}, 0
        uids = _decoded("query_uid", arrays)
        totals = {name: arrays[f"query_{name}"].tolist() for name in _QUERY_SCALARS}
        outcomes = [(correct, reward) for correct, reward in arrays["recent"].tolist()]
        for index, (start, end) in enumerate(pairwise(arrays["recent_offsets"].tolist())):
            query = self._query(uids[index])
            query.recent.extend(outcomes[start:end])
            for name, column in totals.items():
                setattr(query, name, column[index])

        columns: dict[str, list[Any]] = {name: arrays[f"entry_{name}"].tolist() for name in _ENTRY_SCALARS}
        columns |= {name: _decoded(f"entry_{name}", arrays) for name in _ENTRY_STRINGS}
        owners = arrays["entry_query"].tolist()
        for index, (start, end) in enumerate(pairwise(arrays["entry_offsets"].tolist())):
            values: dict[str, Any] = {name: column[index] for name, column in columns.items()}
            # Copies: a view would keep the whole saved array in memory.
            values |= {name: arrays[f"entry_{name}"][start:end].copy() for name in _ENTRY_SEQUENCES}
            self.add(Entry(uid=uids[owners[index]], **values))

    def _query(self, uid: str) -> _Query:
        if uid not in self._queries:
            self._queries[uid] = _Query(recent=deque(maxlen=self.history_window))
        return self._queries[uid]


def _draw(entries: Sequence[Entry], k: int, rng: Generator) -> list[Entry]:
    if not entries or k <= 0:
        return []
    return [entries[index] for index in rng.choice(len(entries), size=min(k, len(entries)), replace=False)]


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def _columns(prefix: str, rows: Sequence[object], dtypes: Mapping[str, type]) -> dict[str, np.ndarray]:
    columns = {name: [getattr(row, name) for row in rows] for name in dtypes}
    return {f"{prefix}_{name}": np.array(column, dtypes[name]) for name, column in columns.items()}


def _encoded(name: str, strings: Sequence[str]) -> dict[str, np.ndarray]:
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    joined = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return {f"{name}_utf8": joined, f"{name}_offsets": _offsets([len(string) for string in encoded])}


def _decoded(name: str, arrays: dict[str, np.ndarray]) -> list[str]:
    joined, offsets = arrays[f"{name}_utf8"].tobytes(), arrays[f"{name}_offsets"].tolist()
    return [joined[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(offsets)]
