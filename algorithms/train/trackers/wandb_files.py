"""Read the `.wandb` files of an offline run of Weights & Biases."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A file begins with 7 bytes of its own. What follows is LevelDB's log: blocks of 32 KiB, in which a record, or a part
# of one, has a header of checksum, length and kind. https://github.com/google/leveldb/blob/main/doc/log_format.md
_FILE_HEADER, _BLOCK = 7, 32768
_HEADER = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def stored_points(path: Path) -> set[tuple[str, int]]:
    """Return the tags and steps in a `.wandb` file; without what a killed process did not finish."""
    points = set()
    for record in _parsed(path):
        if record.WhichOneof("record_type") == "history":
            history = record.history
            points |= {(item.nested_key[0] if item.nested_key else item.key, history.step.num) for item in history.item}
    return points


def is_complete(path: Path) -> bool:
    """Return whether a `.wandb` file has the record that ends a run's session."""
    return path.exists() and any(record.WhichOneof("record_type") == "exit" for record in _parsed(path))


def _parsed(path: Path) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # made at run time

    for content in _records(path.read_bytes()):
        record = Record()
        try:
            record.ParseFromString(content)
        except DecodeError:
            return
        yield record


def _records(content: bytes) -> Iterator[bytes]:
    position, begun = _FILE_HEADER, b""
    while position + _HEADER.size <= len(content):
        room = _BLOCK - position % _BLOCK
        if room < _HEADER.size:
            position += room
            continue
        _, length, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        part = content[position : position + length]
        if not 1 <= kind <= _LAST or len(part) < length:
            return
        position += length
        begun += part
        if kind in (_WHOLE, _LAST):
            yield begun
            begun = b""
