"""Loaded data sets that all environments of a process share."""

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path

from r3env.core import Queries
from r3env.data.sources import Source

_loaded: weakref.WeakValueDictionary[Hashable, Queries] = weakref.WeakValueDictionary()
_loading: dict[Hashable, threading.Lock] = {}
_lock = threading.Lock()


def load_shared(key: Hashable, load: Callable[[], Queries]) -> Queries:
    """Return the queries of this key: the first caller loads them while others wait; the last user drops them.

    Args:
        key: Everything that `load` depends on.
        load: Loads the queries; if it raises, the next caller tries again.
    """
    with _lock:
        loading = _loading.setdefault(key, threading.Lock())
    with loading:
        queries = _loaded.get(key)
        if queries is None:
            queries = load()
            _loaded[key] = queries
        return queries


def source_state(source: Source) -> Hashable:
    """Return the source, and for a file also its size and time: one that was written again is read again."""
    if source.kind != "file" or not Path(source.name).is_file():
        return source.text, source.name, source.configuration, source.revision, source.split, _preset(source)
    status = os.stat(source.name)
    return os.path.realpath(source.name), status.st_mtime_ns, status.st_size, _preset(source)


def _preset(source: Source) -> Hashable:
    return id(source.preset) if source.preset else None


def _forget_locks() -> None:
    # Another thread of the parent may have held one of them, and in the child nobody gives it back.
    global _lock
    _lock = threading.Lock()
    _loading.clear()


os.register_at_fork(after_in_child=_forget_locks)
