"""A history as flat arrays and back, for checkpoints of a history that is not in a file."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from algorithms.history.database import HistoryDatabase
from algorithms.history.entry import SEQUENCES, ReplayEntry

STATE_FORMAT = 4
_SCALARS = {"reward": np.float64, "correct": np.bool_, "truncated": np.bool_, "step": np.int64}
_STRINGS = ("context", "text", "feedback")

_FACTS = ("uid", "context", "reward", "correct", "truncated", "step", "text", "feedback")

Outcome = tuple[str, bool, float]


def export_arrays(database: HistoryDatabase) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return everything in a database as arrays and metadata for JSON.

    Strings are UTF-8 bytes and rows of unlike length are concatenated; `*_offsets` say where each ends.
    """
    uids = database.uids()
    outcomes = [list(reversed(database.outcomes(uid))) for uid in uids]
    entries = [database.entry(event) for event in database.pools_in_order_of_writing()]
    number = {uid: index for index, uid in enumerate(uids)}
    arrays = {
        **_encoded("query_uid", uids),
        "outcome_offsets": _offsets([len(rows) for rows in outcomes]),
        "outcomes": np.array([row for rows in outcomes for row in rows], dtype=np.float64).reshape(-1, 2),
        "entry_query": np.array([number[entry.uid] for entry in entries], np.int64),
        "entry_offsets": _offsets([len(entry.tokens) for entry in entries]),
        "entry_response_offsets": _offsets([len(entry.old_logprobs) for entry in entries]),
        **{f"entry_{name}": np.array([getattr(e, name) for e in entries], kind) for name, kind in _SCALARS.items()},
        **{f"entry_{name}": joined([getattr(e, name) for e in entries], kind) for name, kind in SEQUENCES.items()},
    }
    for name in _STRINGS:
        arrays |= _encoded(f"entry_{name}", [getattr(entry, name) for entry in entries])
    return arrays, {"format": STATE_FORMAT}


def import_arrays(
    arrays: dict[str, np.ndarray], metadata: dict[str, Any]
) -> tuple[Iterator[ReplayEntry], Iterator[Outcome]]:
    """Return the entries and outcomes that `export_arrays` stored, in the order in which to add them again.

    Raises:
        ValueError: the state is of another format.
    """
    if metadata.get("format") != STATE_FORMAT:
        raise ValueError(f"expected replay state of format {STATE_FORMAT}, got {metadata.get('format')}")
    uids = _decoded("query_uid", arrays)
    return _entries(arrays, uids), _outcomes(arrays, uids)


def _outcomes(arrays: dict[str, np.ndarray], uids: Sequence[str]) -> Iterator[Outcome]:
    rows = arrays["outcomes"].tolist()
    for uid, (start, end) in zip(uids, pairwise(arrays["outcome_offsets"].tolist()), strict=True):
        yield from ((uid, bool(correct), reward) for correct, reward in rows[start:end])


def _entries(arrays: dict[str, np.ndarray], uids: Sequence[str]) -> Iterator[ReplayEntry]:
    columns: dict[str, list[Any]] = {name: arrays[f"entry_{name}"].tolist() for name in _SCALARS}
    columns |= {name: _decoded(f"entry_{name}", arrays) for name in _STRINGS}
    owners = arrays["entry_query"].tolist()
    sequences, responses = (pairwise(arrays[name].tolist()) for name in ("entry_offsets", "entry_response_offsets"))
    for index, (sequence, response) in enumerate(zip(sequences, responses, strict=True)):
        values: dict[str, Any] = {name: column[index] for name, column in columns.items()}
        values |= {name: arrays[f"entry_{name}"][slice(*sequence)] for name in ("tokens", "loss_mask")}
        values["old_logprobs"] = arrays["entry_old_logprobs"][slice(*response)]
        yield ReplayEntry(uid=uids[owners[index]], **values)


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def _encoded(name: str, strings: Sequence[str]) -> dict[str, np.ndarray]:
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    joined = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return {f"{name}_utf8": joined, f"{name}_offsets": _offsets([len(string) for string in encoded])}


def _decoded(name: str, arrays: dict[str, np.ndarray]) -> list[str]:
    joined, offsets = arrays[f"{name}_utf8"].tobytes(), arrays[f"{name}_offsets"].tolist()
    return [joined[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(offsets)]


def pack_entries(entries: Sequence[ReplayEntry]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Return some entries as arrays, their sequences one after another, and what fits JSON of each."""
    arrays = {name: joined([getattr(entry, name) for entry in entries], dtype) for name, dtype in SEQUENCES.items()}
    arrays["lengths"] = np.array([len(entry.tokens) for entry in entries], np.int64)
    return arrays, [{name: getattr(entry, name) for name in _FACTS} for entry in entries]


def unpack_entries(arrays: Mapping[str, np.ndarray], facts: Sequence[Mapping[str, Any]]) -> list[ReplayEntry]:
    """Restore the entries that `pack_entries` packed."""
    if not facts:
        return []
    starts = np.cumsum(arrays["lengths"])[:-1]
    masks = np.split(arrays["loss_mask"], starts)
    own = split_tokens(arrays["old_logprobs"], masks)
    rows = zip(facts, np.split(arrays["tokens"], starts), masks, own, strict=True)
    return [ReplayEntry(tokens=t, loss_mask=m, old_logprobs=o, **fact) for fact, t, m, o in rows]


def split_tokens(values: np.ndarray, masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Split values of response tokens by response."""
    return np.split(values, np.cumsum([int(mask.sum()) for mask in masks])[:-1])


def joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """Concatenate arrays of any number, none included."""
    return np.concatenate([*parts, np.zeros(0, dtype)]).astype(dtype)
