"""What a disk may hold after a power failure: POSIX keeps what was synced, and any part of the rest.

A process is watched while it syncs (`watched`, record_syncs.c), and every state is rebuilt from the log alone
(`power_failures`). A sync of a file keeps its content and length, and a sync of a folder the names in it. Of all else
that was written, the disk may hold any part, in any order. Real file systems keep more; which, nobody may rely on.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

BLOCK = 512  # bytes that a disk writes whole or not at all
LARGE = 1 << 20  # bytes
SOURCE = Path(__file__).with_name("record_syncs.c")
# By path: the content of a file, None for a folder.
State = Mapping[str, bytes | None]
# By name: what a folder holds.
Names = Mapping[str, "Entry"]


class Entry(NamedTuple):
    """A file or folder as it was at some moment.

    Args:
        inode: which one it is, whatever its name.
        size: in bytes; None for a folder.
        path: relative to the root; empty text for the root.
    """

    inode: str
    size: int | None
    path: str


@dataclass(frozen=True)
class Sync:
    """A sync of a file, or of the names in a folder.

    Args:
        inode: of the file or folder.
        path: its path when it was synced.
        tree: the root and all below it when the sync began, as a process sees it.
        content: of a file; None for a folder.
    """

    inode: str
    path: str
    tree: tuple[Entry, ...]
    content: bytes | None

    def folders(self) -> dict[str, dict[str, Entry]]:
        """The names in every folder of the tree, by the folder's inode."""
        at = {entry.path: entry.inode for entry in self.tree if entry.size is None}
        names: dict[str, dict[str, Entry]] = {inode: {} for inode in at.values()}
        for entry in self.tree:
            parent, _, name = entry.path.rpartition("/")
            if entry.path and parent in at:
                names[at[parent]][name] = entry
        return names


@dataclass
class Disk:
    """What is on the disk for certain: names by the folder's inode, content by the file's."""

    names: dict[str, Names] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)

    def keep(self, sync: Sync) -> None:
        """Take note of a sync that has ended."""
        if sync.content is None:
            self.names[sync.inode] = sync.folders().get(sync.inode, {})
        else:
            self.contents[sync.inode] = sync.content


def power_failures(syncs: Sequence[Sync], first: int = 0) -> Iterator[tuple[int, str, State]]:
    """Yield what the disk may hold if the power fails during each sync.

    Args:
        syncs: in their order.
        first: the number of the first sync that may be cut short.

    Yields:
        The number of the sync, what is lost in words, and the state.
    """
    disk = Disk()
    for number, sync in enumerate(syncs):
        if number >= first:
            for lost, state in _states(disk, sync):
                yield number, lost, state
        disk.keep(sync)


def _states(disk: Disk, sync: Sync) -> Iterator[tuple[str, State]]:
    root, newest = sync.tree[0].inode, sync.folders()
    old: Mapping[str, Names] = {inode: disk.names.get(inode, {}) for inode in {*disk.names, *newest}}
    whole = {inode: content for inode, content in disk.contents.items()}
    long = {**whole, **{entry.inode: _stretched(disk, entry) for entry in sync.tree if entry.size is not None}}
    yield "all that was not synced", _walk(root, old, whole)
    yield "content, not names", _walk(root, newest, whole)
    yield "content, not names and lengths", _walk(root, newest, long)
    if sync.content is not None:
        for odd in (0, 1):
            torn = _torn(long.get(sync.inode, b""), sync.content, odd)
            yield f"every second block of {sync.path}", _walk(root, newest, {**long, sync.inode: torn})
    for folder in sync.tree:
        if folder.size is None and not _same(old[folder.inode], newest[folder.inode]):
            lost, kept = {folder.inode: old[folder.inode]}, {folder.inode: newest[folder.inode]}
            yield f"names in {folder.path!r}", _walk(root, {**newest, **lost}, long)
            yield f"all names but those in {folder.path!r}", _walk(root, {**old, **kept}, long)


def _same(one: Names, other: Names) -> bool:
    return {name: entry.inode for name, entry in one.items()} == {name: entry.inode for name, entry in other.items()}


def _stretched(disk: Disk, entry: Entry) -> bytes:
    """The synced content at the newest length: cut, or with zeros behind it."""
    known, size = disk.contents.get(entry.inode, b""), entry.size or 0
    return known if len(known) == size else known[:size].ljust(size, b"\0")


def _torn(before: bytes, after: bytes, odd: int) -> bytes:
    """Every second block of `after` over `before`."""
    mixed = bytearray(before[: len(after)].ljust(len(after), b"\0"))
    for start in range(odd * BLOCK, len(after), 2 * BLOCK):
        mixed[start : start + BLOCK] = after[start : start + BLOCK]
    return bytes(mixed)


def _walk(
    folder: str, names: Mapping[str, Names], contents: Mapping[str, bytes], path: str = ""
) -> dict[str, bytes | None]:
    """What can be reached from a folder; a file that was never synced is empty."""
    state: dict[str, bytes | None] = {}
    for name, entry in names.get(folder, {}).items():
        here = f"{path}/{name}" if path else name
        if entry.size is None:
            state |= {here: None, **_walk(entry.inode, names, contents, here)}
        else:
            state[here] = contents.get(entry.inode, b"")
    return state


def write_state(state: State, folder: Path) -> None:
    """Make `folder` hold a state, and nothing else. Large files are links to one copy: do not write into them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        elif len(content) < LARGE:
            (folder / path).write_bytes(content)
        else:
            copy = folder.with_name(f"{folder.name}-{hashlib.blake2b(content, digest_size=8).hexdigest()}")
            if not copy.exists():
                copy.write_bytes(content)
            (folder / path).hardlink_to(copy)


def read_log(log: Path) -> list[Sync]:
    """Read what record_syncs.c wrote."""
    data, at, syncs = log.read_bytes(), 0, []

    def text() -> str:
        nonlocal at
        end = data.index(b"\0", at)
        taken, at = data[at:end].decode(), end + 1
        return taken

    def entry() -> Entry:
        inode, kind, size, path = text(), text(), text(), text()
        return Entry(inode, int(size) if kind == "f" else None, path)

    while at < len(data):
        inode, path, entries, length = text(), text(), int(text()), int(text())
        tree = tuple(entry() for _ in range(entries))
        content, at = data[at : at + length], at + length
        is_folder = any(one.inode == inode and one.size is None for one in tree)
        syncs.append(Sync(inode, path, tree, None if is_folder else content))
    return syncs


def compile_recorder(folder: Path) -> Path | None:
    """Compile record_syncs.c; None where there is no C compiler or no Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "record_syncs.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def watched(library: Path, root: Path, log: Path) -> dict[str, str]:
    """Environment variables of a process whose syncs below `root` are logged."""
    return {"LD_PRELOAD": str(library), "SYNCED_ROOT": str(root.resolve()), "SYNC_LOG": str(log)}
