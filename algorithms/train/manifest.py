"""What files have to be: the size and SHA-256 of all in a checkpoint, and of a run's files of record.

A checkpoint's `manifest.json` lists every file below it. A run's, beside config.yaml, lists what whoever reads the run
believes:

```
{"files": {"config.yaml": [{"bytes": …, "sha256": …}], …},
 "commits": [{"step": 40, "metrics.jsonl": [{"bytes": …, "sha256": …}], …}, …]}
```

Small files are listed whole, growing ones by the length that they had at a checkpoint. A file is listed before it is
written, beside what it was until then (`null`: nothing), so that a kill at any moment leaves files that fit.
"""

import errno
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from algorithms.utils.files import write_json

MANIFEST = "manifest.json"
WHOLE = ("config.yaml", "evaluation.json", "summary.json", "trackers.json")
GROWING = ("metrics.jsonl", "conversations.jsonl")
_BLOCK = 1 << 20

Fingerprint = dict[str, int | str]
# By the name of a growing file: how many bytes of it the digest is of.
Hashed = dict[str, tuple[int, "hashlib._Hash"]]


def write_manifest(folder: Path) -> None:
    """List every file below `folder` with its size and SHA-256."""
    files = {str(path.relative_to(folder)): fingerprint(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / MANIFEST, files)


def listed_files(folder: Path) -> dict[str, Fingerprint]:
    """Return what a checkpoint's manifest lists, by the path within the folder.

    Raises:
        OSError, ValueError: it is missing or cannot be read.
    """
    try:
        files = _json(folder / MANIFEST)
        return {str(name): {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in files.items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def damage(folder: Path, below: str | tuple[str, ...] = "") -> str | None:
    """Check a folder against its manifest; return the damage, naming the file, or None.

    Args:
        folder: a checkpoint.
        below: only files whose path begins so, or with one of these.
    """
    try:
        files = listed_files(folder)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except OSError as error:
        return f"{MANIFEST} cannot be read ({error.strerror})"
    except ValueError:
        return f"{MANIFEST} cannot be read"
    if not files:
        return f"{MANIFEST} lists no file"
    for name in (name for name in files if name.startswith(below)):
        if trouble := _trouble(folder / name, [files[name]]):
            return f"{name} {trouble}"
    return None


# -- A run's files of record -------------------------------------------------------------------------------------------


@contextmanager
def replacing(run: Path, name: str, content: bytes | None) -> Iterator[None]:
    """List what a small file becomes while the block writes it; None: the block deletes it."""
    now = None if content is None else _of_stream(io.BytesIO(content))
    before = fingerprint(run / name) if (run / name).exists() else None
    _change(run, lambda files, commits: files.update({name: [now, before]}))
    yield
    _change(run, lambda files, commits: files.pop(name) if now is None else files.update({name: [now]}))


@contextmanager
def rewriting_end(run: Path, name: str, content: bytes) -> Iterator[None]:
    """List what a growing file becomes while the block changes its last row, where a commit covers that row."""
    now, before = _of_stream(io.BytesIO(content)), fingerprint(run / name)

    def both(_: Any, commits: list[dict[str, Any]]) -> None:
        for commit in commits:
            if before in commit.get(name, []):
                commit[name] = [now, before]

    _change(run, both)
    yield


def commit(run: Path, step: int, kept: Sequence[int], hashed: Hashed) -> None:
    """List the growing files as they are, before a step's checkpoint gets its name.

    Args:
        run: the run directory.
        step: of the checkpoint.
        kept: steps of the checkpoints that are there: the commits of others are dropped.
        hashed: what was read at the last commit, and is not read again; changed to what is read now.
    """
    found = {name: [_of_grown(run / name, hashed)] for name in GROWING if (run / name).exists()}

    def add(_: Any, commits: list[dict[str, Any]]) -> None:
        commits[:] = [one for one in commits if one["step"] in kept and one["step"] < step] + [{"step": step, **found}]

    _change(run, add)


def forget_after(run: Path, step: int) -> None:
    """Drop the commits of later steps, before a run that resumes drops their rows."""

    def drop(_: Any, commits: list[dict[str, Any]]) -> None:
        commits[:] = [one for one in commits if one["step"] <= step]

    _change(run, drop)


def take_as_they_are(run: Path, steps: Sequence[int], growing: Mapping[str, Sequence[int]]) -> None:
    """List a run's files as they are.

    Args:
        run: the run directory.
        steps: of its checkpoints.
        growing: of a file of rows, how many bytes belong to each of these steps and those before it.
    """
    files = {name: [fingerprint(run / name)] for name in WHOLE if (run / name).exists()}
    commits = [
        {"step": step, **{name: [fingerprint(run / name, lengths[place])] for name, lengths in growing.items()}}
        for place, step in enumerate(steps)
    ]
    write_json(run / MANIFEST, {"files": files, "commits": commits})


def committed_steps(run: Path) -> list[int]:
    """List the steps of the commits; none where the manifest is missing or cannot be read."""
    return [one["step"] for one in (_read(run) or {"commits": []})["commits"]]


def fault(run: Path, step: int | None = None) -> tuple[str, str] | None:
    """Compare a run's files of record with its manifest; return the first that does not fit, and what is wrong.

    A process that trains there meanwhile is no fault: where the manifest changed, all is compared again.

    Args:
        run: the run directory.
        step: of the checkpoint that is believed: growing files are compared as they were at it, or before it. None: as
            they were at the newest.
    """
    while True:
        stored = _read(run)
        found = _fault(run, stored, step)
        if found is None or stored == _read(run):
            return found


def _fault(run: Path, stored: Mapping[str, Any] | None, step: int | None) -> tuple[str, str] | None:
    if stored is None:
        return MANIFEST, "cannot be read" if (run / MANIFEST).exists() else "is missing"
    commits = [one for one in stored["commits"] if step is None or one["step"] <= step]
    growing = {name: fits for name, fits in (commits[-1] if commits else {}).items() if name in GROWING}
    for name, fits in {**stored["files"], **growing}.items():
        if trouble := _trouble(run / name, fits, prefix=name in growing):
            return name, trouble
    return None


def _read(run: Path) -> dict[str, Any] | None:
    """Return a run's manifest; None where it is missing or has another form."""
    try:
        stored = _json(run / MANIFEST)
        files = {name: list(stored["files"][name]) for name in WHOLE if name in stored["files"]}
        commits = [{**one, "step": int(one["step"])} for one in stored["commits"]]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return {"files": files, "commits": commits}


def _json(file: Path) -> Any:
    """Read a file, as none of a device or a pipe, which would never end."""
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "not a file")
    return json.loads(file.read_bytes())


def _change(run: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], object]) -> None:
    stored = _read(run) or {"files": {}, "commits": []}
    change(stored["files"], stored["commits"])
    write_json(run / MANIFEST, stored)


# -- One file ----------------------------------------------------------------------------------------------------------


def _trouble(path: Path, fits: Sequence[Mapping[str, Any] | None], *, prefix: bool = False) -> str | None:
    """Say what is wrong with a file; None if it is one of those that fit, or with `prefix` begins as one of them."""
    try:
        if not path.exists():
            return None if None in fits else "is missing"
        if not path.is_file():
            return "is not a file"
        size = path.stat().st_size
        known = [one for one in fits if one is not None]
        sizes = [int(one["bytes"]) for one in known]
        if not any(size == each or (prefix and size > each) for each in sizes):
            least = "at least " if prefix else ""
            return f"has {size} bytes instead of {least}{' or '.join(map(str, sizes)) or 'none'}"
        if not any(fingerprint(path, int(one["bytes"]) if prefix else None) == one for one in known):
            return "has changed since it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, OverflowError):
        return f"is listed in {MANIFEST} in another form"
    return None


def fingerprint(path: Path, length: int | None = None) -> Fingerprint:
    """Return the size and SHA-256 of a file, or of its first `length` bytes."""
    with path.open("rb") as file:
        return _of_stream(file, length)


def _of_grown(path: Path, hashed: Hashed) -> Fingerprint:
    count, digest = hashed.get(path.name, (0, hashlib.sha256()))
    with path.open("rb") as file:
        file.seek(count)
        while block := file.read(_BLOCK):
            digest.update(block)
            count += len(block)
    hashed[path.name] = count, digest
    return {"bytes": count, "sha256": digest.hexdigest()}


def _of_stream(file: BinaryIO, length: int | None = None) -> Fingerprint:
    digest, count = hashlib.sha256(), 0
    while block := file.read(_BLOCK if length is None else min(_BLOCK, length - count)):
        digest.update(block)
        count += len(block)
    return {"bytes": count, "sha256": digest.hexdigest()}
